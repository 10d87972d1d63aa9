"""The import arrows of design.md, held against the code."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("robots", "algorithms", "models", "envs")
FLOORS = ("values", "process", "data", "learning", "tasks", "environment", "agents", "run", "drivers", "lab")
"""Folders of parl_like from the bottom up: a folder knows those before it."""
ALLOWED = {
    "interfaces": {"values"},
    **{folder: {*FLOORS[:i], *["interfaces"] * (i > 0)} for i, folder in enumerate(FLOORS)},
    "algorithms": {"interfaces", "values", "data", "learning"},
    "models": {"values", "data", "learning"},
    "envs": {"interfaces", "values", "process", "data", "environment"},
    # parl_like/__init__.py and __main__.py: the face shows what the folders hold, the command starts the lab
    "face": {*FLOORS, "envs"},
    "robots": {*FLOORS, "interfaces", "algorithms", "models", "envs"},
}
"""Folder → folders that its files may import; a folder may always import itself."""
GAMES = ("algorithms/games/", "parl_like.envs.games")
"""The files of a folder that may know one more, since solvers walk the rules of games, which know no algorithm."""
CATALOGUES = ("learning/explorers", "data/transforms")
"""Folders that list all of their members, as `algorithms` and `models` do."""


def room_of(module):
    """parl_like.envs.grid -> envs; parl_like.values.batch -> values; parl_like.__main__ -> face."""
    head = module.split(".")[1] if "." in module else "__init__"
    return "face" if head in ("__init__", "__main__") else head


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "parl_like" else ("parl_like", *parts))


@functools.cache
def import_nodes(path):
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports_of(path):
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif node.module == "parl_like":
            yield from ((node.lineno, f"parl_like.{alias.name}") for alias in node.names)
        else:
            yield node.lineno, "." * node.level + (node.module or "")


# rglob does not walk through directory links, so each file is read once, under its root path.
FILES = sorted(path for top in ("parl_like", *AREAS) for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path):
    room = room_of(module_of(path))
    for line, module in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        assert not module.startswith("."), f"{where}: write the absolute import (parl_like....) instead of {module!r}"
        if module.startswith("parl_like."):
            target = room_of(module)
            rules = str(path.relative_to(ROOT)).startswith(GAMES[0]) and f"{module}.".startswith(f"{GAMES[1]}.")
            assert target == room or target in ALLOWED[room] or rules, f"{where}: {room} may not import {target} ({module})"


def test_parl_like_holds_folders_alone():
    files = {path.name for path in (ROOT / "parl_like").glob("*.py")}
    assert files <= {"__init__.py", "__main__.py", "interfaces.py"}
    folders = {path.name for path in (ROOT / "parl_like").iterdir() if path.is_dir() and not path.is_symlink()} - {"__pycache__"}
    assert folders - set(AREAS) == set(FLOORS)


FACES = sorted(path for path in (ROOT / "parl_like").rglob("__init__.py") if path.parent != ROOT / "parl_like")


@pytest.mark.parametrize("face", FACES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_the_face_of_a_folder_names_at_most_twelve_of_its_files(face):
    tree = ast.parse(face.read_text(encoding="utf-8"))
    named = re.findall(r"`(\w+)/?`", (ast.get_docstring(tree) or "").partition("\n")[2])
    there = {path.stem for path in face.parent.iterdir()}
    files = [name for name in named if name in there]
    assert len(files) <= 12
    if str(face.parent.relative_to(ROOT / "parl_like")) not in CATALOGUES:
        assert files, "say in the docstring which files a reader wants"
        offered = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        assert all(len(ast.literal_eval(names)) <= 12 for names in offered)


def test_no_files_import_each_other():
    """Not under TYPE_CHECKING either: a file knows only what is below it, so it can be read and tested with what it imports."""
    modules = {module_of(path).removesuffix(".__init__"): path for path in FILES}
    knows = {}
    for name, path in modules.items():
        nodes = import_nodes(path)
        imported = {f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) and node.module
                    for alias in node.names}
        imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        # A name in a file, or a file in a folder; a compiled module knows nobody.
        found = {full if full in modules else full.rpartition(".")[0] for full in imported if not compiled(full)}
        knows[name] = {other for other in found if other in modules and other != name}

    def below(name):
        seen, ahead = set(), [name]
        while ahead:
            ahead += (new := knows[ahead.pop()] - seen)
            seen |= new
        return seen

    circles = {name for name in knows if name in below(name)}
    found = "; ".join(f"{name} → {', '.join(sorted(knows[name] & circles))}" for name in sorted(circles))
    assert not circles, f"files that import each other: {found}"


def compiled(name):
    """parl_like.data._rows -> True: there is a .pyx or .cpp of this name."""
    parts = name.split(".")[1:]
    folder = (ROOT if parts and parts[0] in AREAS else ROOT / "parl_like").joinpath(*parts[:-1])
    return bool(parts) and any((folder / f"{parts[-1]}{end}").exists() for end in (".pyx", ".cpp"))

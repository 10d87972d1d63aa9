"""The import arrows of design.md, held against the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("robots", "algorithms", "models", "envs")
GROUND = ("spec", "leaf", "batch", "owned", "action_map", "errors", "calls", "ranges", "names", "env_ids")
# room -> rooms that its files may import; a room may always import itself
ALLOWED = {
    "ground": set(),  # GROUND
    "data": {"ground"},
    "process": {"ground"},
    "nouns": {"ground", "data", "process"},
    "drivers": {"ground", "data", "nouns", "process"},
    "lab": {"ground", "data", "nouns", "drivers"},
    "algorithms": {"ground", "data", "nouns"},
    "models": {"ground", "data", "nouns"},
    "envs": {"ground", "data", "nouns", "process"},
    # parl_like/__init__.py and __main__.py: the face shows what the rooms hold, the command starts the lab
    "face": {"ground", "data", "nouns", "drivers", "lab", "envs"},
    "robots": {"ground", "data", "nouns", "drivers", "lab", "algorithms", "models", "envs"},
}


def room_of(module):
    """parl_like.envs.grid -> envs; parl_like.batch -> ground; parl_like.agent -> nouns."""
    head = module.split(".")[1] if "." in module else ""
    if head in ("__init__", "__main__"):
        return "face"
    return "ground" if head in GROUND else head if head in ALLOWED else "nouns"


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "parl_like" else ("parl_like", *parts))


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


# rglob does not walk through directory links, so each file is read once, under its root path.
FILES = sorted(path for top in ("parl_like", *AREAS) for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path):
    room = room_of(module_of(path))
    for line, module in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        assert not module.startswith("."), f"{where}: write the absolute import (parl_like....) instead of {module!r}"
        if module.split(".")[0] == "parl_like":
            target = room_of(module)
            assert target == room or target in ALLOWED[room], f"{where}: {room} may not import {target} ({module})"


def test_no_files_import_each_other():
    """Not under TYPE_CHECKING either: a file knows only what is below it, so it can be read and tested with what it imports."""
    modules = {module_of(path).removesuffix(".__init__"): path for path in FILES}
    knows = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {f"{node.module}.{alias.name}" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
                    for alias in node.names}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
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

"""The pages for those who come from other libraries: what they say is here is here."""

import ast
import functools
import re
from pathlib import Path

import pytest

from parl_like.lab import experiment as experiments

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
FOLDERS = ("parl_like", "algorithms", "envs", "models", "robots")
CELL = re.compile(r"(?:`[^`]*`|[^`|])+")
ELSEWHERE = {"TimeLimit", "MyEnv", "fc_0", "for", "in"}
"""Names of gymnasium and of Python, of what a reader gives, and of what is named while it runs."""
EXPERIMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
KINDS = {"robot": ["Robot"], "buffer": ["ReplayBuffer"], "helper": ["OffPolicyHelper"], "task": ["ComputationTask"],
         "target": ["Model"], "model": ["Model", "QTable"], "wrapper": ["ComputationWrapper"], "policy": ["Policy"]}
"""Words for objects → their classes."""


def codes(page):
    """The pieces of code in the last column of a page's tables, but commands, which `test_readme.py` reads, and texts."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [CELL.findall(row)[-1] for row in rows if set(row) - set("-|")]
    found = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    read = [code for code in found if not code.startswith(("parl-like", "pip ")) and not EXPERIMENT.fullmatch(code)]
    return [re.sub(r'"[^"]*"', '""', code) for code in read]


@functools.cache
def trees():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


@functools.cache
def everything():
    return [node for tree in trees() for node in ast.walk(tree)]


def nodes(*kinds):
    return (node for node in everything() if isinstance(node, kinds))


@functools.cache
def methods():
    return {node.name for node in nodes(ast.FunctionDef)}


@functools.cache
def classes():
    return {node.name: node for node in nodes(ast.ClassDef)}


@functools.cache
def functions():
    return {node.name: node for tree in trees() for node in tree.body if isinstance(node, ast.FunctionDef)}


@functools.cache
def words():
    """Every name that stands somewhere in the code: of modules, classes, functions, arguments, attributes and keys."""
    found = {getattr(node, key) for node in nodes(ast.AST) for key in ("name", "id", "attr", "arg") if hasattr(node, key)}
    texts = {node.value for node in nodes(ast.Constant) if isinstance(node.value, str)}
    found |= {path.stem for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    return {*found, *(text for text in texts if text.isidentifier())} - {None}


@functools.cache
def bases(name):
    """The classes of this name and of those that it is made from, as far as they are ours."""
    found, open_names = {}, [name]
    while open_names:
        one = open_names.pop()
        if one in classes() and one not in found:
            found[one] = classes()[one]
            parents = (base.value if isinstance(base, ast.Subscript) else base for base in found[one].bases)
            open_names += [getattr(parent, "id", "") for parent in parents]
    return list(found.values())


@functools.cache
def members(name):
    """The methods and attributes of a class."""
    found = set()
    for node in (inner for one in bases(name) for inner in ast.walk(one)):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
            found.add(node.attr)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


@functools.cache
def arguments(name):
    """What a class, or a function of ours, takes by name; None: it is none."""
    if name in classes():
        made = [node for one in bases(name) for node in one.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        fields = {node.target.id for one in bases(name) for node in one.body if isinstance(node, ast.AnnAssign)}
    elif name in functions():
        made, fields = [functions()[name]], set()
    else:
        return None
    if name in functions() and made[0].args.kwarg:
        return None  # more than it says
    return fields | {arg.arg for node in made for arg in (*node.args.args, *node.args.kwonlyargs)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_on_the_right_are_ours(page):
    pieces = [re.sub(r"\w+\.(csv|py|gif|md)\b", "", code) for code in codes(page)]
    found = {name for code in pieces for name in re.findall(r"(?<![\w{$])[A-Za-z]\w+", code)}
    assert found - words() - ELSEWHERE == set()
    called = {name for code in codes(page) for name in re.findall(r"(?<![\w.\"-])([A-Z]\w+|\w+(?=\())", code)}
    assert called - classes().keys() - methods() - ELSEWHERE - {"POST_EXPERIMENT", "None", "False", "True"} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_attributes_are_those_of_the_class(page):
    for code in codes(page):
        for owner, attribute in re.findall(r"(?<![\w.])(\w+)\.([a-z]\w+)", code):
            kinds = [owner] if owner in classes() else KINDS.get(owner, [])
            assert not kinds or any(attribute in members(kind) for kind in kinds), f"{owner}.{attribute}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_arguments_are_taken(page):
    for code in codes(page):
        for name, given in re.findall(r"(?<![\w.])(\w+)\(([^()]*)\)", code):
            if (takes := arguments(name)) is not None:
                assert set(re.findall(r"(?:^|, ?)(\w+)=", given)) <= takes, code


def test_a_wrong_name_is_found(tmp_path):
    page = tmp_path / "page.md"
    for wrong in ("`Robbot`", "`robot.lern(5)`", "`OffPolicyHelper(sise=5)`", "`run_policie(function)`"):
        page.write_text(f"| there | here |\n|---|---|\n| `x` | {wrong}, and `robot.run(5)` |\n", encoding="utf-8")
        with pytest.raises(AssertionError):
            test_names_on_the_right_are_ours(page)
            test_attributes_are_those_of_the_class(page)
            test_arguments_are_taken(page)


def test_the_experiments_of_another_library_are_all_named():
    text = (ROOT / "docs" / "coming-from" / "reinforcementlearning-jl.md").read_text(encoding="utf-8")
    assert set(re.findall(r"jl-\w+-cartpole", text)) == {name for name in experiments.names() if name.startswith("jl-")}

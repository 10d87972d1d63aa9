"""Laws of what the parts of the library know of each other: types say what crosses from file to file, and names that begin with
an underscore stay in theirs."""

import ast
import json
import re
from pathlib import Path

import pytest
from agent_fakes import Recorder, robot_of

from parl_like import Agent, AgentHelper, VectorAgent

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for top in ("parl_like", "robots", "algorithms", "models", "envs") for path in (ROOT / top).rglob("*.py"))
ALLOWED = ROOT / "tests" / "data" / "private_names_of_others.json"
"""Path → names of other files with an underscore that it still uses. It only shrinks."""

PARTS = re.compile(r"(robot|agent|task|pool|helper|algorithm|queue|driver|wrapper)s?")
UNTYPED = re.compile(r"(((list|Sequence|Iterable)\[|(dict|Mapping)\[str, )Any\]|Any)( \| None)?")

THEIRS = ("_replace", "_asdict", "_fields", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_version",
          "_autoreset_envs", "_np_random_seed")
"""Names of the standard library, torch and gymnasium that have no public twin."""


def name_of(path):
    return str(path.relative_to(ROOT))


def untyped_parts(tree):
    """Line and name of each parameter, variable or attribute that is named like a part and is `Any`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name = node.target.attr if isinstance(node.target, ast.Attribute) else ast.unparse(node.target)
            annotation = node.annotation
        else:
            continue
        if annotation is not None and PARTS.fullmatch(name) and UNTYPED.fullmatch(ast.unparse(annotation)):
            yield node.lineno, name


def private_names_of_others(tree):
    """Line and text of each `x._name` where x is not the object itself, nor a module of another package, and where no line of the
    file defines `_name`."""
    own, foreign = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Import):
            foreign |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("parl_like"):
            foreign |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr) and node.attr not in own:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            is_module = isinstance(root, ast.Name) and root.id in foreign
            if not (is_self(node.value) or is_module or node.attr in THEIRS):
                yield node.lineno, ast.unparse(node)


def is_self(node):
    of_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return of_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def test_no_part_of_a_robot_is_any():
    found = [f"{name_of(path)}:{line} {name}" for path in FILES
             for line, name in untyped_parts(ast.parse(path.read_text(encoding="utf-8")))]
    assert not found, f"name the class, or a protocol of parl_like/interfaces.py: {found}"


def test_names_with_an_underscore_stay_in_their_file():
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    found = {name_of(path): [f"line {line}: {text}" for line, text in private_names_of_others(
        ast.parse(path.read_text(encoding="utf-8")))] for path in FILES}
    over = {path: texts for path, texts in found.items() if len(texts) > allowed.get(path, 0)}
    spare = sum(count for path, count in allowed.items() if not (ROOT / path).exists())  # files that have moved bring theirs
    assert sum(len(texts) - allowed.get(path, 0) for path, texts in over.items()) <= spare, f"call them by public names: {over}"


def untyped_states(tree):
    """Line and annotation of each `state_dict` and `load_state_dict` that does not say what a state is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("state_dict", "load_state_dict"):
            said = node.returns if node.name == "state_dict" else node.args.args[-1 - (len(node.args.args) > 3)].annotation
            if said is None or re.search(r"\b(Any|object)\b", ast.unparse(said)):
                yield node.lineno, node.name


def test_states_have_a_type():
    core = [path for path in FILES if name_of(path).startswith("parl_like/") and path.name != "adam.py"]  # that is torch's
    found = [f"{name_of(path)}:{line} {name}" for path in core
             for line, name in untyped_states(ast.parse(path.read_text(encoding="utf-8")))]
    assert not found, f"State of parl_like/values/plain.py, or what it is more exactly: {found}"


def test_untyped_parts_are_found():
    source = "def f(robot: Any, tasks: Sequence[Any], agent: Agent, value: Any): ...\nclass A:\n    pool: Any | None = None\n"
    assert sorted(untyped_parts(ast.parse(source))) == [(1, "robot"), (1, "tasks"), (3, "pool")]


def test_private_names_are_found():
    source = ("import torch\ndef f(pool, other):\n    torch._foreach_add(1)\n    pool._halt()\n    other._mine\n"
              "class A:\n    def __init__(self):\n        self._mine = super()._theirs\n        self._seen.pool._deep\n")
    assert list(private_names_of_others(ast.parse(source))) == [(4, "pool._halt"), (9, "self._seen.pool._deep")]


@pytest.mark.parametrize("kind", [Agent, VectorAgent, AgentHelper])
def test_objects_of_the_core_have_few_attributes(kind):
    """All that one has once it is made, also what other files set."""
    with robot_of(Recorder(), AgentHelper, agent=kind if issubclass(kind, Agent) else Agent) as robot:
        made = robot.agents[0] if issubclass(kind, Agent) else robot.agents[0].helpers["RL"]
        assert len(vars(made)) <= 20, sorted(vars(made))


def test_a_helper_fits_on_a_few_screens():
    assert len((ROOT / "parl_like" / "agents" / "helper.py").read_text(encoding="utf-8").splitlines()) <= 250

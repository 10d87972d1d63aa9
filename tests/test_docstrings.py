"""A public function that raises says so: its docstring names each class that a `raise` in it names, or says what is refused. In
the folders of data one that takes or returns arrays says their shapes. One that takes a time says that it is in seconds."""

import ast
import builtins
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for path in (ROOT / "parl_like").rglob("*.py"))  # rglob does not walk through links: the core alone
ABOVE = sorted(path for folder in ("algorithms", "envs", "models", "robots") for path in (ROOT / folder).rglob("*.py"))

UNSAID = {"NotImplementedError", "StopIteration"}
"""Errors that need no word: of a method that subclasses write, and of an iterator."""


def name_of(path):
    return str(path.relative_to(ROOT))


def last_name(node):
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def caught_by(handler):
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {"BaseException"} if handler.type is None else {last_name(kind) for kind in kinds}


def is_caught(name, caught):
    kind = getattr(builtins, name, None)
    bases = {base.__name__ for base in kind.__mro__} if isinstance(kind, type) else {name}
    return bool(bases & caught)


def raised(node, caught=frozenset()):
    """Yield the names of the classes that statements below this node raise, but for those that it catches itself, and for
    functions and classes inside of it."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        name = last_name(node.exc)
        if name[:1].isupper() and not is_caught(name, caught):
            yield name
    if isinstance(node, ast.Try):
        here = caught | {name for handler in node.handlers for name in caught_by(handler)}
        for part in node.body:
            yield from raised(part, here)
        below = [*node.handlers, *node.orelse, *node.finalbody]
    else:
        below = list(ast.iter_child_nodes(node))
    for part in below:
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from raised(part, caught)


def public_functions(tree, inside=None):
    """Yield each public function with the class that it is in. A setter's words are those of its property."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node, node)
        elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            yield node, inside
        elif isinstance(node, (ast.If, ast.Try)):
            yield from public_functions(node, inside)


def all_words(trees):
    """Return method → the docstrings of all methods of that name, from which those without one inherit theirs."""
    words = {}
    for tree in trees:
        for function, inside in public_functions(tree):
            if inside is not None and function.name != "__init__":
                words[function.name] = words.get(function.name, "") + (ast.get_docstring(function) or "")
    return words


def words_of(function, inside, inherited):
    words = ast.get_docstring(function) or (inherited.get(function.name, "") if inside is not None and inside.bases else "")
    if inside is not None and function.name == "__init__":
        words += ast.get_docstring(inside) or ""
    if any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in function.decorator_list):
        words += "".join(ast.get_docstring(one) or "" for one in inside.body
                         if isinstance(one, ast.FunctionDef) and one.name == function.name)
    return words


def silent(tree, inherited):
    """Line, name and errors of each public function that raises without a word."""
    for function, inside in public_functions(tree):
        words = words_of(function, inside, inherited)
        names = {*raised(ast.Module(function.body, []))} - UNSAID
        missing = sorted(name for name in names if not re.search(rf"\b{name}\b", words))
        if missing and not re.search(r"\b[Rr]efuse", words):
            yield function.lineno, function.name, missing


def test_public_functions_say_what_they_raise():
    trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in (*FILES, *ABOVE)}
    inherited = all_words(trees.values())
    found = {path: lines for path, tree in trees.items() if (lines := list(silent(tree, inherited)))}
    assert not found, f"add a section Raises to their docstrings: {found}"


@pytest.mark.parametrize("source, said", [
    ("def f(x):\n    raise ValueError(x)", ["ValueError"]),
    ("def f(x):\n    'Raises ValueError.'\n    raise ValueError(x)", []),
    ("def f(x):\n    'Refuses 3.'\n    raise ValueError(x)", []),
    ("def f(x):\n    'Raises ValueError.'\n    raise errors.TypeError from None", ["TypeError"]),
    ("def f(x):\n    try:\n        raise KeyError\n    except LookupError:\n        raise TypeError from None", ["TypeError"]),
    ("def f(x):\n    try:\n        g()\n    except KeyError as error:\n        raise error", []),
    ("def f(x):\n    def g():\n        raise ValueError\n    return g", []),
    ("def _f(x):\n    raise ValueError(x)", []),
    ("class A:\n    'Raises: ValueError.'\n    def __init__(self):\n        raise ValueError", []),
    ("class A:\n    @property\n    def x(self):\n        'ValueError: no.'\n    @x.setter\n    def x(self, v):\n"
     "        raise ValueError", []),
    ("class A:\n    def f(self):\n        raise NotImplementedError", []),
    ("class A:\n    def f(self):\n        'KeyError: no.'\nclass B(A):\n    def f(self):\n        raise KeyError", []),
    ("if True:\n    def f():\n        raise OSError", ["OSError"]),
])
def test_functions_that_raise_without_a_word_are_found(source, said):
    tree = ast.parse(source)
    assert [name for _, _, missing in silent(tree, all_words([tree])) for name in missing] == said


ARRAYS = re.compile(r"\b(Array|Positions|NDArray|Tensor|ArrayLike)\b")
SHAPE = re.compile(r"\[[^\]]*\]|\bshapes?\b|\bnumbers?\b|\bflat\b")
FOLDERS = ("values", "process", "data", "learning", "lab")


def is_array(annotation):
    said = "" if annotation is None else ast.unparse(annotation)
    return bool(ARRAYS.search(said)) and "Callable" not in said


def shapeless(tree, inherited):
    """Line and name of each public function that takes or returns arrays and says no shape."""
    for function, inside in public_functions(tree):
        args = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        taken = any(is_array(arg.annotation) for arg in args) or is_array(function.returns)
        if taken and not SHAPE.search(words_of(function, inside, inherited)):
            yield function.lineno, function.name


def test_functions_of_arrays_say_their_shapes():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    inherited = all_words(trees.values())
    found = {name_of(path): lines for path, tree in trees.items() if path.relative_to(ROOT / "parl_like").parts[0] in FOLDERS
             if (lines := list(shapeless(tree, inherited)))}
    assert not found, f"say the shape, as in [N, …]: {found}"


@pytest.mark.parametrize("source, found", [
    ("def f(x: Array):\n    'Return it.'", ["f"]),
    ("def f(x: Array):\n    'Return it, [N].'", []),
    ("def f(x: int) -> dict[str, Array]:\n    'Return it.'", ["f"]),
    ("def f(x: Callable[[Array], Array]):\n    'Return it.'", []),
    ("def _f(x: Array): ...", []),
])
def test_functions_without_a_shape_are_found(source, found):
    tree = ast.parse(source)
    assert [name for _, name in shapeless(tree, all_words([tree]))] == found


TIMES = re.compile(r"(^|_)(seconds|patience|timeout|deadline|grace|s)$")
"""Names of parameters that are times where they are no whole numbers."""


def unitless(tree, inherited):
    """Line, name and parameter of each public function that takes a time and does not say that it is in seconds."""
    for function, inside in public_functions(tree):
        for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            is_time = TIMES.search(arg.arg) and arg.annotation is not None and "float" in ast.unparse(arg.annotation)
            if is_time and not re.search(r"\b[Ss]econds?\b|\bSee `", words_of(function, inside, inherited)):
                yield function.lineno, function.name, arg.arg


def test_times_are_in_seconds():
    trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in (*FILES, *ABOVE)}
    inherited = all_words(trees.values())
    found = {path: lines for path, tree in trees.items() if (lines := list(unitless(tree, inherited)))}
    assert not found, f"say that it is in seconds: {found}"


@pytest.mark.parametrize("source, found", [
    ("def f(patience: float): ...", ["patience"]),
    ("def f(*, timeout: float | None = None):\n    'Wait for so many seconds.'", []),
    ("def pause(patience: float):\n    'See `Driver.pause`.'", []),
    ("def f(patience: int):\n    'Episodes without gain.'", []),
    ("def f(log_every_s: float, of_s: str): ...", ["log_every_s"]),
    ("class A:\n    'Args: grace: Seconds.'\n    def __init__(self, grace: float): ...", []),
    ("def _f(patience: float): ...", []),
])
def test_times_without_a_unit_are_found(source, found):
    tree = ast.parse(source)
    assert [name for _, _, name in unitless(tree, all_words([tree]))] == found

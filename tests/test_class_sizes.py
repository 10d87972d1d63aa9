"""A class is small enough to be read at once: its attributes and methods are counted, and whoever has more gives a reason."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("parl_like", "algorithms", "models", "envs", "robots")
ATTRIBUTES, METHODS = 20, 30

MORE_ATTRIBUTES = {
    "ThinkerNet": "its nine networks keep the names that saved parameters have, beside twelve settings of their one forward pass",
}
MORE_METHODS = {
    "Batch": "it does what a dict and an array do", "Lanes": "all that is asked of the rows of a replay buffer",
    "Robot": "what users call",
}

pytestmark = pytest.mark.checkout


@functools.cache
def classes():
    """What each class has: (name, attributes, methods)."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if not path.is_symlink()]
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return [(node.name, len(attributes_of(node)), len(methods_of(node))) for node in nodes if isinstance(node, ast.ClassDef)]


def attributes_of(node):
    """The names that a class assigns on self, anywhere in it."""
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
            and isinstance(one.value, ast.Name) and one.value.id == "self"}


def methods_of(node):
    return [one for one in ast.walk(node) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_no_class_has_more_attributes_than_are_read_at_once():
    assert [(name, n) for name, n, _ in classes() if n > ATTRIBUTES and name not in MORE_ATTRIBUTES] == []


def test_no_class_has_more_methods_than_are_read_at_once():
    assert [(name, n) for name, _, n in classes() if n > METHODS and name not in MORE_METHODS] == []


def test_the_lists_of_larger_classes_name_no_other():
    attributes, methods = ({name: of[i] for name, *of in classes()} for i in (0, 1))
    assert all(attributes[name] > ATTRIBUTES for name in MORE_ATTRIBUTES)
    assert all(methods[name] > METHODS for name in MORE_METHODS)


def test_attributes_and_methods_are_counted():
    node = ast.parse("class A:\n    def f(self):\n        self.a = self.b, self.c = 1, 2\n        self.d += other.e\n"
                     "        self.g[:] = 1\n        def h(): self.i: int = 1\n").body[0]
    assert attributes_of(node) == {"a", "b", "c", "d", "i"} and len(methods_of(node)) == 2

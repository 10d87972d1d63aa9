"""A class name has one meaning in the whole repository."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("parl_like", "algorithms", "models", "envs", "robots", "benchmarks")

pytestmark = pytest.mark.checkout


def test_no_class_name_is_defined_twice():
    places = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(ROOT)))
    # A robot module's configuration is found by this name, so each module has one.
    assert all(path.startswith("robots/") for path in places.pop("Config"))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}

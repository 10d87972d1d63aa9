"""Each rule of what surrounds a run is held by tests, which are there: tests/data/rules.yaml."""

from pathlib import Path

import evidence
import pytest

from parl_like.lab.yaml_text import load_yaml_file

pytestmark = pytest.mark.checkout
HERE = Path(__file__).parent
RULES = [(rule, file, test) for rules in load_yaml_file(HERE / "data" / "rules.yaml").values() for rule, files in rules.items()
         for file, tests in files.items() for test in tests]


def test_each_test_of_a_rule_is_there():
    assert [(rule, file, test) for rule, file, test in RULES if not evidence.exists(f"tests/{file}::{test}")] == []


def test_the_guard_of_the_dashboard_has_no_test_without_a_rule():
    file = "lab/test_dashboard_guard.py"
    there = {name for name in evidence.tests_of(f"tests/{file}") if name.startswith("test_")}
    assert there - {test for _, where, test in RULES if where == file} == set()

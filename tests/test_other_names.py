"""The page for those who come from other libraries: what it says is here is here."""

import ast
import re
from pathlib import Path

import pytest

from parl_like import Robot
from parl_like.lab import experiment as experiments

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "from-others.md"
HERE = re.findall(r"^\|.*\|([^|]*(?:`[^`]*`[^|]*)*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ELSEWHERE = {"TimeLimit"}  # gymnasium's


def ours():
    """Every class and function of the package."""
    found = set()
    for folder in ("parl_like", "algorithms", "envs", "models", "robots"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= {one.name for one in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                      if isinstance(one, (ast.ClassDef, ast.FunctionDef))}
    return found


def test_names_on_the_right_are_classes_and_functions_of_ours():
    named = {name for cell in HERE for code in re.findall(r"`([^`]+)`", cell)
             for name in re.findall(r"(?<![\w.\"-])([A-Z]\w+|\w+(?=\())", code)}
    assert len(named) > 30 and named - ours() - ELSEWHERE - {"POST_EXPERIMENT"} == set()


def test_attributes_of_a_robot_and_experiments_are_there():
    text = "".join(HERE)
    methods = set(re.findall(r"(?:robot|Robot)\.(\w+)", text))
    assert len(methods) > 5 and all(hasattr(Robot, name) for name in methods)
    assert set(re.findall(r"jl-\w+-cartpole", text)) == {name for name in experiments.names() if name.startswith("jl-")}

"""The import arrows of design.md, held against the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("robots", "algorithms", "models", "envs")
GROUND = ("spec", "leaf", "fields", "batch", "owned")
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

"""Families of experiments: robots with one task by the file of their algorithm, the others by their robot. The files are read,
not imported, so a list loads no torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from parl_like.lab.experiment import Experiment


def family(experiment: Experiment) -> str:
    """Name of a file without `.py`: that of its algorithm in `algorithms/`, or of its robot in `robots/`."""
    algorithm = str(experiment.config.get("algorithm", "")) if experiment.robot == "single" else ""
    return _file_of_class().get(algorithm, experiment.robot)


def title(name: str) -> str:
    """Return what a family is: the first sentence of its file, in one line; empty where that is no file of ours."""
    for area in ("algorithms", "robots"):
        for folder in _folders(area):
            for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                if path.exists():
                    return re.split(r"\.\s+(?=[A-Z`])|\.?$", " ".join((ast.get_docstring(_parsed(path)) or "").split()))[0]
    return ""


@functools.cache
def _file_of_class() -> dict[str, str]:
    return {node.name: path.stem for folder in _folders("algorithms") for path in sorted(folder.glob("*.py"))
            for node in _parsed(path).body if isinstance(node, ast.ClassDef)}


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _folders(area: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(f"parl_like.{area}")  # imports only the parent package
    yield from map(Path, (spec.submodule_search_locations if spec else None) or [])

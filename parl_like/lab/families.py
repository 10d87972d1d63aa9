"""Families of experiments: robots with one task by the file of their algorithm, the others by their robot; `single` are those
with an algorithm of the user's.

`families.yaml` says what each is, so a list loads no torch; `make algorithms` writes it of the docstrings.
"""

from __future__ import annotations

import functools
from pathlib import Path

from parl_like.lab.experiment import Experiment
from parl_like.lab.yaml_text import Tree, load_yaml_file

TABLE = Path(__file__).with_suffix(".yaml")
"""Family → its `title`, and its `algorithms` where it is a file of them."""


OF_ONE = ("single", "prediction")
"""Robots with one task, whose configurations name its algorithm."""


def family(experiment: Experiment) -> str:
    """Return the name of a file without `.py`: that of its algorithm in `algorithms/`, or of its robot in `robots/`."""
    algorithm = str(experiment.config.get("algorithm", "")) if experiment.robot in OF_ONE else ""
    return next((name for name, one in _table().items() if algorithm in one.get("algorithms", ())), experiment.robot)


def title(name: str) -> str:
    """Return what a family is: the first sentence of its file, in one line; empty where that is no file of ours."""
    return str(_table().get(name, {}).get("title", ""))


@functools.cache
def _table() -> dict[str, Tree]:
    return load_yaml_file(TABLE)

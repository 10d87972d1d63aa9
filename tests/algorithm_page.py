"""Writes docs/algorithms.md, and the families of experiments, from the docstrings of algorithms/ and robots/, the experiments and
docs/marks.json: `make algorithms`."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import median

from parl_like import Algorithm, algorithms
from parl_like.lab import experiment as experiments
from parl_like.lab import families
from parl_like.lab.reports import marks
from parl_like.lab.yaml_text import dump_yaml
from parl_like.learning import action_spaces

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
EXPERIMENTS = ROOT / "robots" / "experiments"
HEAD = """# Algorithms

The algorithms of [algorithms/](../algorithms/), a file a family. `make algorithms` makes this page of the docstrings
and of [marks](marks.md). `parl-like train NAME` trains an experiment; the arguments of the class are settings of it
(`parl-like train sac-pendulum SAC.alpha=0.1 hidden=[256,256]`). Scores are medians, over all seeds, of the
evaluation after training. Where there is no mark, a link leads to the page with the results."""

ROBOTS = {"DynamicsLearner": ["auxiliary"], "WorldModel": ["thinker", "thinker_shared"], "PPO": ["hierarchy"]}
"""Class → the robots of several tasks that it is part of, where these have other names."""


SPACES = """## Which algorithm takes what

The table holds with our networks that fit the algorithm (`parl-like list --spaces`); a test builds every combination.

- *Box* has finite bounds. *any* is that, an unbounded Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these.
- *images*: a convolutional network reads observations that have one; else an image is one long row of numbers.
- *masks*: the observation's `mask` says which choices are legal, see [own.md](own.md#masks).
- *memory*: with a recurrent network (`model=Recurrent`), or always.
"""


def classes() -> dict[str, list[type[Algorithm]]]:
    """File of `algorithms/` → its public algorithms, in the order in which they stand there."""
    found = defaultdict(list)
    for name in algorithms.__all__:
        one = getattr(algorithms, name)
        if issubclass(one, Algorithm):
            found[one.__module__.rpartition(".")[2]].append(one)
    return {file: sorted(members, key=lambda one: inspect.getsourcelines(one)[1]) for file, members in sorted(found.items())}


def families_table() -> str:
    """What `parl-like list` says of families: the files of `algorithms/`, and the robots; `single` heads experiments of
    users' own algorithms."""
    known = {file: {"title": first_sentence(f"parl_like.algorithms.{file}"), "algorithms": [one.__name__ for one in members]}
             for file, members in classes().items()}
    for robot in sorted({experiments.get(path.stem).robot for path in EXPERIMENTS.glob("*.yaml")} - {*known}):
        known[robot] = {"title": first_sentence(f"parl_like.robots.{robot}")}
    return "# Made by `make algorithms`.\n" + dump_yaml(dict(sorted(known.items())))


def first_sentence(module: str) -> str:
    """The first sentence of a module's docstring, in one line."""
    return re.split(r"\.\s+(?=[A-Z`])|\.?$", " ".join((import_module(module).__doc__ or "").split()))[0]


def trained() -> dict[str, list[str]]:
    """Class in small letters, or robot of several tasks → lines about the experiments that train it."""
    scores = defaultdict(list)
    for mark in marks.load(ROOT / "docs" / "marks.json"):
        if not mark.differs:
            scores[mark.experiment].append(mark)
    lines = defaultdict(list)
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        one = experiments.get(path.stem)
        seen = scores[one.name]
        pages = [name for name in ("robots.md", "thinker.md", "thinker-published.md")
                 if f"`{one.name}`" in (PAGE.parent / name).read_text(encoding="utf-8")]
        told = (f": {median(mark.score for mark in seen):.4g} after {seen[0].env_steps:,} steps, {len(seen)} seeds" if seen else
                f": see [{pages[0]}]({pages[0]})" if pages else "")
        lines[one.config["algorithm"].lower() if one.robot == "single" else one.robot].append(f"`{one.name}`{told}")
    return lines


def spaces() -> str:
    """Which algorithm takes what."""
    rows = action_spaces.in_words()
    lines = ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join([SPACES, "| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|", *lines])


def page() -> str:
    parts, seen = [HEAD, spaces()], trained()
    for file, members in classes().items():
        parts.append(f"## {first_sentence(f'parl_like.algorithms.{file}')}\n\n[algorithms/{file}.py](../algorithms/{file}.py)")
        for one in members:
            lines = [f"- {line}" for name in (one.__name__.lower(), *ROBOTS.get(one.__name__, ())) for line in seen[name]]
            parts.append("\n\n".join(filter(None, [
                f"### {one.__name__}", f"Models: {one.fitting_models}." if one.fitting_models else "",
                "\n".join(["Experiments:", "", *lines]) if lines else "", f"```text\n{inspect.getdoc(one)}\n```"])))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    families.TABLE.write_text(families_table(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)

"""Writes docs/results/leaderboard.md from docs/marks.json: which experiments reach their mark, and how long they take. `make
algorithms` writes it, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from parl_like.lab import experiment as experiments
from parl_like.lab.reports import marks as reports
from parl_like.lab.reports.marks import Mark

ROOT = Path(__file__).resolve().parents[1]
MARKS, PAGE = ROOT / "docs" / "marks.json", ROOT / "docs" / "results" / "leaderboard.md"
HEAD = """# Leaderboard

`make algorithms` makes this page of `docs/marks.json`: the shipped experiments whose mark most seeds reach, the quickest
first. *Seconds* are those of the whole training, by the clock, the median of all seeds and the least. *To the mark* are the
seconds after which the mean return while training, with exploration, is as high as the mark for the first time. It is the median
of the seeds that come so far. *In all* says how many seeds reach the mark; none is chosen.

- `–`: the mark is no mean return, or it was made when curves were not kept.
- A mark keeps the machine that it was made on, and not the other work there. Read the seconds as an order of magnitude.
  [Benchmarks](../benchmarks.md#training) have processor seconds to the mark beside other libraries.
- Experiments on one environment have marks and budgets of their own: the quickest is not always the best.
  [Marks](../marks.md) has the scores of all seeds, those that miss included.
- A commit with a `*` had changes; `–`: it is not known."""
COLUMNS = ("experiment", "mark", "score", "in all", "steps", "seconds", "least", "to the mark", "commit", "Python, torch",
           "machine")
ELSEWHERE = "Environments with one experiment"


def environment(experiment: str) -> str:
    """Return what the experiment plays, by its configuration, or as its robot has it by default."""
    one = experiments.get(experiment)
    defaults = {field.name: field.default for field in msgspec.structs.fields(one.module().Config)}
    named = (config[key] for config in (one.config, defaults) for key in ("env", "game") if config.get(key))
    env = next(named, "its robot's own")
    return str(env["id"] if isinstance(env, Mapping) else getattr(env, "id", env))


def reached(marks: Sequence[Mark]) -> dict[str, list[list[Mark]]]:
    """Return environment → the marks of each experiment that reaches what it expects with most seeds, quickest first."""
    by: dict[str, list[Mark]] = defaultdict(list)
    known = {*experiments.names()}
    for mark in marks:
        if not mark.differs and mark.experiment in known:
            by[mark.experiment].append(mark)
    found: dict[str, list[list[Mark]]] = defaultdict(list)
    for name, same in sorted(by.items()):
        if 2 * sum(mark.solved is True for mark in same) > len(same):
            found[environment(name)].append(same)
    return {env: sorted(there, key=lambda same: median(mark.seconds for mark in same)) for env, there in sorted(found.items())}


def to_the_mark(mark: Mark) -> float | None:
    """Return the seconds after which its curve is first at the mean return that is expected; None where it never is."""
    least = mark.expect.get("mean_return", (None, None))[0]
    return next((seconds for _, seconds, value in mark.curve if seconds and least is not None and value >= least), None)


def row(same: Sequence[Mark]) -> str:
    """Return the line of one experiment."""
    seconds, one = [mark.seconds for mark in same], same[0]
    commits = sorted({f"{mark.git.commit[:7]}{'*' * mark.git.dirty}" for mark in same if mark.git is not None})
    versions = sorted({f"{mark.versions.get('python', '?')}, {mark.versions.get('torch', '?')}" for mark in same})
    solved = sum(mark.solved is True for mark in same)
    score = median(mark.score for mark in same)
    there = [after for mark in same if (after := to_the_mark(mark)) is not None]
    machines = sorted({mark.machine for mark in same} - {""})
    cells = (f"`{one.experiment}`", reports._expected(one), f"{score:.4g}", f"{solved} of {len(same)}", f"{one.env_steps:,}",
             f"{median(seconds):,.1f}", f"{min(seconds):,.1f}", f"{median(there):,.1f}" if there else "–",
             " ".join(commits) or "–", "; ".join(versions), "; ".join(machines) or "–")
    return f"| {' | '.join(cells)} |"


def table(rows: Sequence[str], *more: str) -> str:
    """Return a table with these rows, and `more` columns in front."""
    columns = (*more, *COLUMNS)
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows])


def page(marks: Sequence[Mark] | None = None) -> str:
    """Return the page."""
    found = reached(reports.load(MARKS) if marks is None else marks)
    parts = [HEAD]
    for env, there in found.items():
        if len(there) > 1:
            parts += [f"## {env}", table([row(same) for same in there])]
    alone = [f"| {env} {row(there[0])}" for env, there in found.items() if len(there) == 1]
    parts += [f"## {ELSEWHERE}", table(alone, "environment")] * bool(alone)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Draws docs/with-and-without.svg from docs/marks.json: the scores of robots with a further task, and without it. `make
algorithms` draws it, too."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from parl_like.lab.reports import marks as reports
from parl_like.lab.reports.marks import Mark

ROOT = Path(__file__).resolve().parents[1]
MARKS, PICTURE = ROOT / "docs" / "marks.json", ROOT / "docs" / "with-and-without.svg"
WIDTH, LEFT, RIGHT, ROW, TOP = 560, 236, 508, 40, 30
STYLE = ("text{font:12px sans-serif;fill:#555}.with{fill:#2a6fbb}.without{fill:none;stroke:#c8553d;stroke-width:1.5}"
         "@media(prefers-color-scheme:dark){text{fill:#bbb}.with{fill:#6aa9ec}.without{stroke:#ee8468}}")


class Pair(NamedTuple):
    """A robot with a further task and without it: the text beside the dots, and two experiments with what is changed in them."""

    text: str
    with_task: tuple[str, Mapping[str, Any]]
    without: tuple[str, Mapping[str, Any]]


UNPAID = {"ComputationTask.rewards": {"curiosity": 0, "env": 10.0}}
"""What `rewards.curiosity=0` changes: the task for curiosity learns, and does not reward the policy."""

PAIRS = (
    Pair("counts, six rooms", ("counts-multiroom", {}), ("counts-multiroom", UNPAID)),
    Pair("RND, a locked room", ("rnd-doorkey", {}), ("rnd-doorkey", UNPAID)),
    Pair("ICM, a locked room", ("icm-doorkey", {}), ("rnd-doorkey", UNPAID)),
    Pair("goals, a locked room", ("hierarchy-doorkey", {}), ("hierarchy-doorkey", {"hierarchy": False})),
    Pair("goals on two levels, the same", ("hierarchy-doorkey-three", {}), ("hierarchy-doorkey-three", {"hierarchy": False})),
    Pair("options, four rooms", ("optioncritic-fourrooms", {}), ("optioncritic-fourrooms", {"OptionTable.options": 1})),
    Pair("a curriculum, a lock of 20 turns", ("curriculum-lock", {}), ("curriculum-lock", {"curriculum": False})),
    Pair("dynamics, CartPole and noise", ("auxiliary-cartpole", {}), ("auxiliary-cartpole", {"auxiliary": False})),
    Pair("SPR, the same", ("auxiliary-cartpole", {"learners": ["SPR"]}), ("auxiliary-cartpole", {"auxiliary": False})),
    Pair("dynamics, Pendulum and noise", ("auxiliary-pendulum", {}), ("auxiliary-pendulum", {"auxiliary": False})),
    Pair("UNREAL's three, Breakout", ("unreal-minatar", {}), ("unreal-minatar", {"auxiliary": False})),
)


def scores(marks: list[Mark], experiment: str, differs: Mapping[str, Any]) -> list[float]:
    """Return the scores of its seeds. Raises ValueError where there are not five."""
    found = [mark.score for mark in marks if mark.experiment == experiment and mark.differs == differs]
    if len(found) < 5:
        raise ValueError(f"{MARKS}: {experiment} {dict(differs)} has {len(found)} seeds; expected five of `parl-like marks`")
    return found


def shown(score: float) -> str:
    return f"{score:.0f}" if abs(score) >= 100 else f"{score:.2g}"


def svg(marks: list[Mark]) -> str:
    """Return the picture: a row for each pair, scores across, filled dots with the task and rings below them without."""
    title = "Scores with a further task and without it, a dot for each seed"
    drawn = [f'<circle class="with" cx="{LEFT + 5}" cy="14" r="4.5"/><text x="{LEFT + 14}" y="18">with the task</text>',
             f'<circle class="without" cx="{LEFT + 125}" cy="14" r="4.5"/><text x="{LEFT + 134}" y="18">without</text>']
    for i, (text, with_task, without) in enumerate(PAIRS):
        y, both = TOP + ROW * i, (scores(marks, *with_task), scores(marks, *without))
        low, high = min(map(min, both)), max(map(max, both))
        drawn.append(f'<text x="6" y="{y + 22}">{escape(text)}</text><path d="M{LEFT} {y + 18}H{RIGHT}" stroke="#8886"/>')
        for kind, values, at in zip(("with", "without"), both, (y + 12, y + 24), strict=True):
            across = (LEFT + (RIGHT - LEFT) * (value - low) / (high - low or 1.0) for value in values)
            drawn += [f'<circle class="{kind}" cx="{x:.1f}" cy="{at}" r="4.5"/>' for x in across]
        drawn += [f'<text x="{LEFT - 8}" y="{y + 22}" text-anchor="end">{shown(low)}</text>',
                  f'<text x="{RIGHT + 8}" y="{y + 22}">{shown(high)}</text>']
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + ROW * len(PAIRS) + 6}" role="img">'
            f"<title>{title}</title><style>{STYLE}</style>{''.join(drawn)}</svg>\n")


def draw() -> None:
    """Write the picture."""
    PICTURE.write_text(svg(reports.load(MARKS)), encoding="utf-8")

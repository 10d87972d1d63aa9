"""Draws the curves that docs/marks.json keeps as SVG, for the page of each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parl_like.lab.reports.marks import Mark

WIDTH, HEIGHT, LEFT, BELOW = 560, 200, 56, 40
COLOURS = ("#2a6fbb", "#c8553d", "#3c8d5a", "#8a5fb0", "#b8860b")
STYLE = "text{font:12px sans-serif;fill:#555}@media(prefers-color-scheme:dark){text{fill:#bbb}}"


def svg(title: str, marks: Sequence[Mark]) -> str:
    """Return a picture: a line for each seed, steps across, the mean return while training up (for learners from data the score
    of evaluations, for solvers −`nash_conv`), and the mark as a dashed line. Raises ValueError where no mark has a curve of two
    points."""
    lines = [mark.curve for mark in marks if len(mark.curve) > 1]
    if not lines:
        raise ValueError(f"{title}: no curve of two points")
    solver = "nash_conv" in marks[0].evaluation
    unit = "iterations" if solver else "steps"
    mean_return = "mean_return" in marks[0].expect and lines[0][0][1] > 0
    least = marks[0].expect["score" if solver else "mean_return"][0] if solver or mean_return else None
    values = [value for line in lines for _, _, value in line] + [least] * (least is not None)
    low, high = min(values), max(values)
    last = max(line[-1][0] for line in lines)
    room = high - low or 1.0

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 10) * step / last, 10 + (HEIGHT - BELOW - 10) * (high - value) / room

    drawn = [f'<path d="M{LEFT} 10V{HEIGHT - BELOW}H{WIDTH - 10}" fill="none" stroke="#888"/>']
    if least is not None:
        drawn.append(f'<path d="M{LEFT} {at(0, least)[1]:.1f}H{WIDTH - 10}" stroke="#888" stroke-dasharray="4 4"/>')
    for colour, line in zip(COLOURS * len(lines), lines, strict=False):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(step, value) for step, _, value in line))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    ends = (high, 16), (low, HEIGHT - BELOW)
    up = [f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{value:.4g}</text>' for value, y in ends]
    across = f'<text x="{WIDTH - 10}" y="{HEIGHT - BELOW + 16}" text-anchor="end">{last:,} {unit}</text>'
    name = f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(title)}</text>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
            f"<title>{escape(title)}</title><style>{STYLE}</style>{''.join([*drawn, *up, across, name])}</svg>\n")

"""Draws docs/architecture.svg and the table in docs/architecture.md from the imports of the code: `make architecture`.

Where a room stands in the picture is written here; which arrows there are is read. An arrow that follows from two others is
left out of the picture.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from html import escape
from pathlib import Path

from test_layers import FILES, ROOT, imports_of, module_of, room_of

SVG, PAGE = ROOT / "docs" / "architecture.svg", ROOT / "docs" / "architecture.md"
# room: (column, row, columns wide), where it lies, what it is
ROOMS = {
    "robots": ((2, 0, 8), "robots/", "ready-made robots and their experiments"),
    "face": ((0, 0, 2), "parl_like/__init__.py", "what users import"),
    "lab": ((0, 1, 4), "parl_like/lab/", "experiments, run directories, commands"),
    "drivers": ((0, 2, 4), "parl_like/drivers/", "how agents run, how requests travel"),
    "algorithms": ((4, 2, 2), "algorithms/", "losses and targets"),
    "models": ((6, 2, 2), "models/", "networks"),
    "envs": ((8, 2, 2), "envs/", "environments"),
    "run": ((0, 3, 4), "parl_like/run/", "robot, agent pool, evaluation"),
    "agents": ((0, 4, 4), "parl_like/agents/", "agents and their helpers"),
    "environment": ((2, 5, 8), "parl_like/environment/", "one agent's environment: made, stepped, checked, observed"),
    "tasks": ((0, 6, 9), "parl_like/tasks/", "computation tasks, queues, wrapper and communicator"),
    "learning": ((0, 7, 8), "parl_like/learning/", "models, algorithms, optimiser steps, explorers"),
    "data": ((0, 8, 8), "parl_like/data/", "rows, buffers, transforms, returns, files"),
    "process": ((8, 8, 2), "parl_like/process/", "child processes"),
    "interfaces": ((8, 7, 2), "parl_like/interfaces.py", "types of what they know of each other"),
    "values": ((0, 9, 10), "parl_like/values/", "batches, specs, actions, errors: what everything is made of"),
}
COLUMN, ROW, HEIGHT, MARGIN = 84, 92, 54, 12


def arrows() -> dict[str, set[str]]:
    """Room → the rooms that its files import."""
    found: dict[str, set[str]] = {}
    for room, others in map(arrows_of, FILES):
        found[room] = found.get(room, set()) | others
    return found


@functools.cache
def arrows_of(path: Path) -> tuple[str, set[str]]:
    """Return the room of a file, and those that it imports."""
    room = room_of(module_of(path))
    return room, {room_of(module) for _, module in imports_of(path) if module.startswith("parl_like.")} - {room}


def direct(found: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others."""
    def reach(room: str) -> set[str]:
        return found[room].union(*(reach(other) for other in found[room]))

    return {(room, other) for room, others in found.items() for other in others
            if not any(other in reach(third) for third in others - {other})}


def svg(found: dict[str, set[str]]) -> str:
    """The picture: boxes where ROOMS says, arrows where `found` says."""
    unknown = sorted(found.keys() - ROOMS.keys())
    if unknown:
        raise SystemExit(f"{__file__}: no place in the picture for {unknown}; add them to ROOMS")
    places = {room: place for room, (place, _, _) in ROOMS.items()}
    boxes = {room: (MARGIN + at * COLUMN, MARGIN + row * ROW, wide * COLUMN - 16) for room, (at, row, wide) in places.items()}
    ends: dict[tuple[str, str], list[int]] = {}
    used: dict[str, int] = defaultdict(int)
    for upper, lower in sorted(direct(found), key=lambda pair: (boxes[pair[1]], boxes[pair[0]])):
        (x, _, wide), (x_low, _, wide_low) = boxes[upper], boxes[lower]
        left, right = max(x, x_low), min(x + wide, x_low + wide_low)
        if left < right:  # straight down, from the middle of what they share
            ends[upper, lower] = [(left + right) // 2] * 2
        else:
            ends[upper, lower] = [x + wide - 20 - 24 * used[upper], x_low + 20] if x < x_low else [x + 20, x_low + wide_low - 20]
            used[upper] += 1
    width, height = 2 * MARGIN + 10 * COLUMN - 16, 2 * MARGIN + 9 * ROW + HEIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="13">',
           '  <defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
           '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
           f'  <rect width="{width}" height="{height}" fill="#fff"/>']
    for (upper, lower), (x, x_low) in ends.items():
        top, bottom = boxes[upper][1] + HEIGHT, boxes[lower][1]
        curve = f"M{x},{top} C{x},{top + 30} {x_low},{bottom - 30} {x_low},{bottom - 1}"
        out.append(f'  <path d="{curve}" fill="none" stroke="#555" marker-end="url(#a)"/>')
    for room in (room for room in ROOMS if room in found):
        x, y, wide = boxes[room]
        _, folder, what = ROOMS[room]
        out += [f'  <rect x="{x}" y="{y}" width="{wide}" height="{HEIGHT}" rx="6" fill="#eef4fb" stroke="#4a7ab0"/>',
                f'  <text x="{x + 10}" y="{y + 22}" fill="#222"><tspan font-weight="bold">{room}</tspan>'
                + (f' <tspan fill="#888" font-size="11">{escape(folder)}</tspan>' if wide > 160 else "") + "</text>",
                f'  <text x="{x + 10}" y="{y + 42}" fill="#666">{escape(what)}</text>']
    return "\n".join([*out, "</svg>", ""])


def table(found: dict[str, set[str]]) -> str:
    """Every arrow, one room a line."""
    lines = ["| room | where | what | imports |", "|---|---|---|---|"]
    for room, (_, folder, what) in ROOMS.items():
        if room in found:
            imported = ", ".join(other for other in ROOMS if other in found[room])
            lines.append(f"| {room} | `{folder}` | {what} | {imported or '–'} |")
    return "\n".join(lines)


def page(text: str, found: dict[str, set[str]]) -> str:
    """`text` with its table renewed."""
    return re.sub(r"(?<=<!-- rooms -->\n).*?(?=\n<!-- end -->)", lambda _: table(found), text, flags=re.DOTALL)


if __name__ == "__main__":
    now = arrows()
    SVG.write_text(svg(now), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), now), encoding="utf-8")
    print(*(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path for path in (SVG, PAGE)))

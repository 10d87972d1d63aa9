"""One HTML file of some runs, which shows them without a server."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path

from parl_like.data.storage.safe_files import replace_file
from parl_like.lab.dashboard.board import COMPARED, Board, NotThere
from parl_like.lab.dashboard.page import whole_page
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import Tree, UsageError

METRICS = 40  # of which the file has curves
POINTS = 4_000_000  # numbers of all curves
PICTURES = 12 << 20  # bytes of all pictures


def export(paths: Sequence[Path], out: Path) -> Tree:
    """Writes the file, and returns what is in it.

    Raises:
        UsageError: there are no runs, or the file cannot be written.
    """
    board = Board(paths)
    while (runs := board.runs())["more"]:
        pass
    ids: list[str] = runs["ids"]
    if not ids:
        raise UsageError(f"no run directories in {', '.join(map(str, paths))}; `parl-like list` shows the runs")
    metrics = _chosen(runs["metrics"])
    curves: list[Tree] = []
    for metric in metrics:
        new = board.whole([metric], ids)
        if sum(4 * len(one["points"].get("x", ())) for one in curves + new) > POINTS:
            break
        curves += new
    left, details = PICTURES, {}
    for name in ids:
        try:
            details[name] = board.run(name)
        except NotThere:  # deleted meanwhile
            continue
        kept = []
        for file in details[name]["files"]:
            if file["size"] <= left:
                try:
                    body, kind = board.picture(name, file["id"])
                except NotThere:
                    continue
                left -= len(body)
                kept.append({**file, "data": f"data:{kind};base64,{base64.b64encode(body).decode()}"})
        details[name]["files"] = kept
    ids, runs = [*details], {**runs, "ids": [*details], "runs": [row for row in runs["runs"] if row["id"] in details]}
    shown = list(dict.fromkeys(one["metric"] for one in curves))
    data = {"time": time.strftime("%Y-%m-%d %H:%M"), "runs": {**runs, "metrics": shown}, "curves": curves, "details": details,
            "differences": board.differences(ids[:COMPARED])}
    body = whole_page(data)
    with written(out, "--export"):
        replace_file(out, body)
    return {"page": str(out), "runs": len(ids), "metrics": len(shown), "bytes": len(body)}


def _chosen(metrics: Sequence[str]) -> list[str]:
    """Return first what people look at first: returns, evaluations, losses."""
    first = ("return/", "eval/", "evaluation/")
    order = sorted(metrics, key=lambda name: (not name.startswith(first), not name.endswith("loss"), name.count("/"), name))
    return order[:METRICS]

"""The dashboard with many runs: seconds until its table and its curves are there, the server's work for an update while rows come
in, and how its memory grows. The page is opened in Debian's Chromium where there is one."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.common import machine, report

METRICS = ("return/mean", "RL/loss")


def make(folder: Path, runs: int, rows: int, columns: int) -> list[Any]:
    """Return `runs` run directories with `rows` rows each."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fakes"))
    from dashboards import make_run

    names = ["step", "elapsed_s", "return/mean", "RL/loss", *(f"RL/number_{i}" for i in range(columns - 4))]
    made = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(64, columns - 3))
        lines = [
            f"{100 * i},{i / 10},{i / 50 + noise[i % 64, 0]:.6f}," + ",".join(map("{:.6g}".format, noise[i % 64, 1:]))
            for i in range(rows)
        ]
        table = ",".join(names) + "\n" + "\n".join(lines) + "\n"
        made.append(
            make_run(
                folder,
                f"run_{seed}",
                seed=seed,
                differs={"lr": 10.0 ** -(2 + seed % 4)},
                table=table.encode(),
                state="running" if seed < 4 else "finished",
            )
        )
    return made


def used() -> float:
    """Return the MiB of this process."""
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def whole(board: Any) -> tuple[int, list[float]]:
    """Ask until all is read; return the last count of changes, and the seconds of each answer."""
    now, seconds, more = 0, list[float](), True
    while more:
        begin = time.perf_counter()
        found = board.runs()
        between = time.perf_counter()
        curves = board.curves(METRICS, found["ids"], now)
        seconds += [between - begin, time.perf_counter() - between]
        now, more = curves["now"], found["more"] or curves["more"]
    return now, seconds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all runs together")
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    from parl_like.lab.dashboard.board import Board
    from parl_like.lab.runs.metrics import METRICS as TABLE

    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        runs = make(Path(name), args.runs, args.rows // args.runs, args.columns)
        board = Board([Path(name)])
        begin = time.perf_counter()
        now, answers = whole(board)
        cases["all_curves_s"], cases["longest_answer_s"] = time.perf_counter() - begin, max(answers)
        ids, updates, sizes = board.runs()["ids"], [], []
        for n in range(args.updates):
            for run in runs[:4]:
                step = args.rows // args.runs * 100 + 100 * n
                run.outbox.append(TABLE, f"{step},{step / 1000},{n},{n}{',0' * (args.columns - 4)}\n".encode())
            begin = time.perf_counter()
            board.runs(now)
            now = board.curves(METRICS, ids, now)["now"]
            board.run(ids[0])
            updates.append(time.perf_counter() - begin)
            if n % 20 == 19:
                sizes.append(used())
        cases |= {
            "update_s": median(updates),
            "longest_update_s": max(updates),
            "mib": sizes[-1] if sizes else used(),
            "grown_mib": sizes[-1] - sizes[len(sizes) // 2] if sizes else 0.0,
        }
        cases |= painted(Path(name))
    lines = [f"{key:20} {value:8.3f}" for key, value in cases.items()]
    report({"bench": "dashboard", "machine": machine(), "runs": args.runs, "rows": args.rows, "cases": cases}, args.json, lines)
    return 0


def painted(folder: Path) -> dict[str, float]:
    """Return when a browser has drawn the page, and when all of its curves, in seconds from its start of loading; {}: no browser.
    The server is a process of its own, as the command starts it."""
    import chromium

    if chromium.PROGRAM is None:
        return {}
    import subprocess

    words = [sys.executable, "-m", "parl_like", "dashboard", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served, chromium.Browser() as browser:
        try:
            assert served.stdout is not None
            browser.size(1280, 900)
            browser.open(json.loads(served.stdout.readline())["address"])
            first = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            shown = browser.evaluate(
                f"[{first}, document.documentElement.dataset.begun, document.documentElement.dataset.wholeAt].map(Number)"
            )
        finally:
            served.terminate()
    return dict(zip(("first_paint_s", "table_and_first_curves_s", "all_drawn_s"), (one / 1000 for one in shown), strict=True))


if __name__ == "__main__":
    raise SystemExit(main())

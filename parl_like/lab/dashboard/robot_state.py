"""A robot as its run directory describes it: who takes part, and what moved between the last rows of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from parl_like.lab.dashboard.columns import header_of
from parl_like.lab.runs.metrics import METRICS, Table, number
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import Tree

TAIL = 1 << 18  # bytes of the table's end
COUNTED = ("requests", "rows", "batches")  # of a queue: counts, whose differences are rates
SHOWN = ("queue_depth", "wait_p50_s", "wait_p99_s", "compute_p50_s", "errors", "late", "dropped", "skipped", "grad_norm", "lr")
MOST = 64  # tasks and workers
MOST_AGENTS = 256


def read(run: RunDir) -> Tree:
    """Return `tasks` (each with `predict` and `learn`, its two queues, and rates per second), `workers`, `agents`, and the newest
    numbers of the whole. A run of an earlier version says nothing of its agents; its tasks are known by its metrics."""
    described = _described(run)
    new, old = last_rows(run)
    seconds = new.get("elapsed_s", math.nan) - old.get("elapsed_s", math.nan)

    def rate(key: str) -> float | None:
        change = new.get(key, math.nan) - old.get(key, math.nan)
        return change / seconds if seconds > 0 and math.isfinite(change) and change >= 0 else None

    names = [key.removesuffix("/predict/requests") for key in new if key.endswith("/predict/requests")]
    known = {str(task.get("name")): task for task in _dicts(described.get("tasks"))}
    tasks = []
    for name in dict.fromkeys([*known, *names]):
        task = {key: value for key, value in known.get(name, {}).items() if key not in ("predict", "learn")} | {"name": name}
        for kind in ("predict", "learn"):
            given = known.get(name, {}).get(kind)
            task[kind] = _queue(new, old, f"{name}/{kind}", given if isinstance(given, Mapping) else {}, rate)
        task |= {"updates": _finite(new.get(f"updates/{name}")), "updates_per_s": rate(f"updates/{name}"),
                 "rows": _finite(new.get(f"rows/{name}")), "rows_per_s": rate(f"rows/{name}"),
                 "loss": _finite(new.get(f"{name}/loss"))}
        tasks.append(task)
    return {"driver": described.get("driver"), "mode": described.get("mode"), "n_agents": described.get("n_agents"),
            "n_envs": described.get("n_envs"), "agents": _dicts(described.get("agents"))[:MOST_AGENTS],
            "tasks": tasks[:MOST],
            "workers": _dicts(described.get("workers"))[:MOST], "step": _finite(new.get("step")), "steps_per_s": rate("step"),
            "episodes": _finite(new.get("episodes")), "return": _finite(new.get("return/mean"))}


def last_rows(run: RunDir) -> tuple[dict[str, float], dict[str, float]]:
    """The last row of metrics that is none of an evaluation, and one before it; {} where there is none."""
    head = b"".join(_first(run))
    names, _ = header_of(head)
    if not names:
        return {}, {}
    text, whole = run.tail(METRICS, TAIL)
    lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)[0 if whole else 1 :][-40:]
    header = head[: len(head) - len(header_of(head)[1])]
    table = Table(run, [header, *lines])
    rows = [dict(zip(names, map(number, row), strict=True)) for row in table.rows() if row != names]
    rows = [row for row in rows if math.isnan(row.get("eval/episodes", math.nan))] or rows
    if not rows:
        return {}, {}
    new = rows[-1]
    old = next((row for row in rows[-2::-1] if row.get("elapsed_s", math.nan) < new.get("elapsed_s", math.nan) - 0.5),
               rows[0] if len(rows) > 1 else {})
    return new, old


def _first(run: RunDir) -> list[bytes]:
    for piece in run.pieces(METRICS, 1 << 62):
        return [piece]
    return []


def _described(run: RunDir) -> Tree:
    try:
        found = msgspec.json.decode(run.read("robot.json", missing=b"{}"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _dicts(value: object) -> list[Tree]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _queue(new: Mapping[str, float], old: Mapping[str, float], key: str, given: Mapping[str, object], rate: object) -> Tree:
    per_second = rate if callable(rate) else (lambda _: None)
    out: Tree = {name: _finite(new.get(f"{key}/{name}")) for name in SHOWN}
    batches = new.get(f"{key}/batches", math.nan) - old.get(f"{key}/batches", math.nan)
    rows = new.get(f"{key}/rows", math.nan) - old.get(f"{key}/rows", math.nan)
    fill = rows / batches if batches > 0 else new.get(f"{key}/mean_batch")
    limit = given.get("max_rows")
    return out | {"batch": _finite(fill), "max_rows": limit if isinstance(limit, int) else None,
                  **{f"{name}_per_s": per_second(f"{key}/{name}") for name in COUNTED}}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

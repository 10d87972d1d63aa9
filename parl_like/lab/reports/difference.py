"""The difference of two runs: settings, versions, code, recorded rows and results; the files of their sources that are not the
same; and the step from which on their metrics are not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from parl_like.lab import config as configs
from parl_like.lab import snapshot
from parl_like.lab.runs.metrics import Table, number
from parl_like.lab.runs.rundir import RunDir

Row = dict[str, Any]
NOT_COMPARED = ("run_dir",)
NAMED = 5
"""Metrics, or files, that a line names."""


def difference(a: RunDir, b: RunDir) -> dict[str, Any]:
    """Return why two runs differ: `rows`, each with `what`, and its value of `a` and `b` (None: it has none); `files`, as
    `changed` returns them; and `metrics`, as `parted` returns it.

    Kinds of `what`: the experiment, `setting …`, `version …`, `code …`, `data …` (the sha256 of recorded rows that it learned
    from), `result …` (of the evaluation after training), and `trace`, the hash of all events, where both have one.

    Raises:
        RunError: one is not readable.
    """
    one, other = (facts(run) for run in (a, b))
    differs = [what for what in {**one, **other} if one.get(what) != other.get(what)]
    return {"rows": [{"what": what, "a": one.get(what), "b": other.get(what)} for what in differs], "files": changed(a, b),
            "metrics": parted(a, b)}


def changed(a: RunDir, b: RunDir) -> list[str]:
    """Return the files of the sources of both runs whose contents differ. Raises UsageError: the sources of one are damaged."""
    if a.info().sources == b.info().sources:
        return []
    one, other = snapshot.kept(a), snapshot.kept(b)
    return [name for name in sorted(one.keys() & other.keys()) if one[name] != other[name]]


def facts(run: RunDir) -> dict[str, object]:
    """Return what can differ between two runs, by what it is, see `difference`. Raises RunError: it is not readable."""
    info, result = run.info(), run.result() or {}
    facts: dict[str, object] = {"experiment": info.experiment, "state": run.state()}
    config = {key: value for key, value in run.config().items() if key not in NOT_COMPARED}
    facts |= {f"setting {key}": value for key, value in configs.flat(config).items()}
    facts |= {f"version {name}": version for name, version in info.versions.items()}
    if info.git is not None:
        facts |= {"code commit": info.git.commit, "code changed since": info.git.dirty}
    if info.source is not None:
        facts |= {"code file": info.source.file or info.source.module, "code sha256": info.source.sha256}
    facts |= {f"data {name}": digest for name, digest in info.data.items()}
    facts["resumed"] = info.resumed
    facts |= {f"result {key}": value for key, value in configs.flat(_plain(result.get("evaluation"))).items()}
    if "trace_hash" in result:
        facts["trace"] = result["trace_hash"]
    return facts


def _plain(found: object) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else {}


def parted(a: RunDir, b: RunDir) -> Row:
    """Return where the metrics of two runs part.

    `rows`: how many both have, up to there. `last_same`: the step of the last one that is the same in both; `first_other`: of the
    first one that is not, with its `columns`, name → the two values. None: there is no such row.

    Readings of the clock (columns whose names end in `_s`) are not compared, nor are columns that one run alone has.
    """
    tables = [Table(run) for run in (a, b)]
    names = [name for name in tables[0].header if name in tables[1].header and not name.endswith("_s")]
    found: Row = {"rows": 0, "last_same": None, "first_other": None, "columns": {}}
    if "step" not in names:
        return found
    for one, other in zip_longest(*(table.cells(names) for table in tables)):
        if one is None or other is None:  # one has gone on for longer
            return found
        found["rows"] += 1
        columns = {name: (number(x), number(y)) for name, x, y in zip(names, one, other, strict=True) if x != y}
        if columns:
            return found | {"first_other": min(number(row[names.index("step")]) for row in (one, other)), "columns": columns}
        found["last_same"] = number(one[names.index("step")])
    return found


def in_words(found: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the files that are not the same, where there are any, and one on where the metrics part."""
    files = [f"code: not the same in {_some(found['files'])}"] if found["files"] else []
    metrics = found["metrics"]
    if not metrics["rows"]:
        return [*files, "metrics: there are none to compare"]
    if metrics["first_other"] is None:
        return [*files, f"metrics: the same to step {metrics['last_same']:,.0f}, where the shorter table ends"]
    named = _some([f"{name} {x:.6g} and {y:.6g}" for name, (x, y) in metrics["columns"].items()])
    before = "from the first row on" if metrics["last_same"] is None else f"the same to step {metrics['last_same']:,.0f}"
    return [*files, f"metrics: {before}, other at step {metrics['first_other']:,.0f}: {named}"]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more

"""The table in docs/reliability.md: read, its tests run, and judged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.faults_common import ROOT, Line, folder


@dataclass
class Row:
    """One row of the table in docs/reliability.md: its faults, its state, and its tests as (file, word) pairs."""

    faults: list[str]
    state: str
    tests: list[tuple[str, str]]

    @property
    def holds(self) -> bool:
        """Without an `in part`, an `open`, or a `for …` that leaves something out."""
        return self.state == "holds"


def fault_ids(text: str) -> list[str]:
    """`F16–F18, F22, F36a` → F16, F17, F18, F22, F36a."""
    out = []
    for part in text.split(","):
        ends = re.findall(r"F(\d+)([a-z]?)", part)
        out += [f"F{number:02}{ends[0][1]}" for number in range(int(ends[0][0]), int(ends[-1][0]) + 1)] if ends else []
    return out


def rows_of(text: str) -> list[Row]:
    """The table of faults: id, fault, what happens, state, tests. For a word without a file in front see `COMMON`."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("| F") or len(cells) != 5 or not fault_ids(cells[0]):
            continue
        tests: list[tuple[str, str]] = []
        for part in re.sub(r"\([^)]*\)", "", cells[4]).split(";"):
            files = re.findall(r"`([\w/]+\.py)`", part)
            words = [word.strip() for word in re.sub(r"`[^`]*`", "", part).strip(" :,").split(",") if re.search(r"\w", word)]
            tests += [(file, word) for file in files[-1:] or [""] for word in words] if words else []
            tests += [(file, "") for file in (files[:-1] if words else files)]
        rows.append(Row(fault_ids(cells[0]), cells[3], tests))
    return rows


def functions_of(folder: Path) -> dict[str, list[str]]:
    """File below `folder` → names of its tests."""
    return {str(file.relative_to(folder)): re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            for file in sorted(folder.rglob("test_*.py"))}


COMMON = "drivers/test_processes.py"
"""The file that a word without one means; where it has no such test, any file."""


def targets(file: str, word: str, functions: dict[str, list[str]]) -> list[str]:
    """`file::function` of every test that a word of the table means; the file alone where it names one only; [] for none."""
    if not word:
        return [file] if file in functions else []
    name = word.partition("[")[0]

    def below(paths: Iterable[str]) -> list[str]:
        return [f"{path}::{function}" for path in paths for function in functions.get(path, ()) if name in function]

    return below([file]) if file else below([COMMON]) or below(functions)


@dataclass
class Outcome:
    """One test as pytest ran it; `node`: file::function[parameters]."""

    node: str
    result: str
    seconds: float


def run_tests(nodes: Sequence[str]) -> list[Outcome]:
    """One pytest of the tests named, relative to the folder of tests; those marked slow are not run."""
    with folder() as path:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={path / 'out.xml'}",
                 *(f"tests/{node}" for node in nodes)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if not (path / "out.xml").exists():
            raise RuntimeError(f"pytest: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        cases = list(ElementTree.parse(path / "out.xml").iter("testcase"))
    out = []
    for case in cases:
        result = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        parts = case.get("classname", "").split(".")
        file = next(("/".join(parts[1:n]) + ".py" for n in range(len(parts), 1,
                                                                 -1) if (ROOT / ("/".join(parts[:n]) + ".py")).exists()), "")
        out.append(Outcome(f"{file}::{case.get('name')}", result, float(case.get("time", 0))))
    return out


def belongs(outcome: Outcome, file: str, word: str, nodes: Sequence[str]) -> bool:
    """Return whether a test that ran is one that (file, word) means, of which `nodes` are the functions."""
    function, _, rest = outcome.node.partition("[")
    wanted = word.partition("[")[2].rstrip("]")
    return (function in nodes or outcome.node.partition("::")[0] in nodes) and wanted in rest


def judged(row: Row, functions: dict[str, list[str]], outcomes: Sequence[Outcome]) -> tuple[list[Outcome], str]:
    """The tests of a row that ran, and why its faults do not count as survived, or ''."""
    mine: dict[str, Outcome] = {}
    for file, word in row.tests:
        nodes = targets(file, word, functions)
        ran = [outcome for outcome in outcomes if belongs(outcome, file, word, nodes)]
        if not any(outcome.result != "skipped" for outcome in ran):
            return list(mine.values()), f"`{file} {word}`: {'no such test' if not nodes else 'no test ran'}"
        mine |= {outcome.node: outcome for outcome in ran}
    bad = [outcome.node for outcome in mine.values() if outcome.result in ("failure", "error")]
    reason = "" if row.holds else row.state
    return list(mine.values()), f"failed: {', '.join(bad)}" if bad else reason or ("" if mine else "no tests named")


@lru_cache(1)
def suite(quick: bool) -> tuple[list[Row], dict[str, list[str]], list[Outcome]]:
    """The table, and its tests run once for the two lines that need them; in quick runs only a few."""
    rows = rows_of((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    functions = functions_of(ROOT / "tests")
    chosen = [row for row in rows if "F15" in row.faults] if quick else rows
    nodes = sorted({node for row in chosen for file, word in row.tests for node in targets(file, word, functions)})
    files = {node for node in nodes if "::" not in node}
    return rows, functions, run_tests([node for node in nodes if node in files or node.partition("::")[0] not in files])


def survived(options: Any) -> Line:
    rows, functions, outcomes = suite(options.quick)
    good, why, states = [], {}, Counter()
    for row in rows:
        reason = judged(row, functions, outcomes)[1]
        states["holds" if row.holds else "in part" if row.state.startswith(("in part",
                                                                            "holds for")) else "open"] += len(row.faults)
        if reason:
            why |= dict.fromkeys(row.faults, reason)
        else:
            good += row.faults
    failed = sum(outcome.result in ("failure", "error") for outcome in outcomes)
    small = " (quick: one row's tests were run)" if options.quick else ""
    return Line(f"{len(good)} of {len(good) + len(why)}; by the table {states['holds']} hold, {states['in part']} in part, "
                f"{states['open']} open; {len(outcomes)} tests, {failed} failed{small}",
                None if options.quick else not why,
                {"survived": sorted(good), "not": dict(sorted(why.items())), "states": dict(states), "tests": len(outcomes),
                 "failed": failed})


def test_time(options: Any) -> Line:
    rows, functions, outcomes = suite(options.quick)
    total = sum(outcome.seconds for outcome in outcomes)
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    return Line(f"{total:.0f} s for {len(outcomes)} tests, slowest {slowest[0].seconds:.1f} s "
                f"({slowest[0].node.partition('[')[0]})", None if options.quick else total < 180.0,
                {"seconds": total, "slowest": {outcome.node: outcome.seconds for outcome in slowest},
                 "not_measured": "flakes in 20 runs"})

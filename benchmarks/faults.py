"""The score card of reliability (docs/reliability.md): every line measured here and now, beside its goal and the best peer.

A line that cannot be measured says so, with the reason. `--only NAME ...` measures single lines, `--quick` all of them small: it
shows that they work, and no figure of it means anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any

import torch

from benchmarks import faults_code as code
from benchmarks import faults_input as bad
from benchmarks import faults_programs as programs
from benchmarks import faults_running as running
from benchmarks import faults_table as table
from benchmarks.common import machine, report
from benchmarks.faults_common import Line, Overdue, at_most

CARD: dict[str, tuple[Callable[[Any], Line], str, str]] = {
    "load held": (running.load_held, ">= 0.80", "no peer publishes one (Ray's chaos tests: run time and memory only)"),
    "faults survived": (table.survived, "all in docs/reliability.md", "no peer publishes a list; RLlib's own tests touch 7"),
    "bad wire inputs tried / escapes": (bad.bad_messages, "1,000,000 / 0", "none fuzz"),
    "bad files tried / wrong loads": (bad.bad_files, "2,000 + 25 + 200 / 0", "no checks for flips"),
    "records lost / duplicated / corrupted": (
        running.records, "0 / 0 / 0 of 20,000", "Reverb 0 lost of 10,000 with transient errors"),
    "bytes lost in checkpoints": (bad.checkpoint_bytes, "0", "not measured"),
    "detection time": (running.detection, "< 0.1 s / limit + 0.1 s", "Ray 0.01 s / by hand; SF 180 s; PARL 20-30 s"),
    "recovery time": (running.recovery, "< 1 s", "Ray core 0.27 s; RLlib adds its 60 s delay"),
    "shutdown": (programs.shutdown, "< 5 s, 0 left", "SF 3.2 s, 0 left"),
    "orphans": (programs.orphans, "0 after 1 s", "Ray 0 after 5 s"),
    "resume": (programs.resume, "equal", "nobody promises it"),
    "leak": (programs.leak, "0 fds, 0 threads, < 0.1 MB each", "RLlib tests memory only"),
    "unsafe calls": (code.unsafe_calls, "0", "SB3 3 sinks; SB3-zoo eval + yaml.UnsafeLoader; PARL everywhere"),
    "test time": (table.test_time, "< 180 s, 0 flakes in 20 runs", "RLlib uses 15 s sleeps; PARL up to 95 s in one test"),
}
"""Line → what measures it, its goal, and the best peer's figure."""


def measured(name: str, options: Any, limit: float) -> Line:
    """One line; whatever goes wrong is what it says."""
    work, goal, peer = CARD[name]
    begin = monotonic()
    try:
        with at_most(limit):
            line = work(options)
    except Overdue as error:
        line = Line(f"not measured: {error}; something hangs", None)
    except Exception as error:  # noqa: BLE001  the other lines are still wanted
        line = Line(f"not measured: {type(error).__name__}: {' '.join(str(error).split())[:500]}", None)
    line.goal, line.peer, line.seconds = goal, peer, monotonic() - begin
    return line


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench faults", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="of `load held` with faults, and as many without")
    parser.add_argument("--quick", action="store_true", help="everything small")
    parser.add_argument("--only", nargs="+", choices=sorted({name.split()[0] for name in CARD}), metavar="NAME",
                        help="lines, by their first word: %(choices)s")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines: dict[str, Line] = {}
    for name in CARD:
        if options.only is None or name.split()[0] in options.only:
            lines[name] = measured(name, options, 120.0 if options.quick else 900.0 + 4 * options.seconds)
            if not options.json:
                line = lines[name]
                print(f"{name}: {line.value}\n    goal {line.goal}: "
                      f"{'?' if line.reached is None else 'yes' if line.reached else 'NO'}; "
                      f"best peer: {line.peer} ({line.seconds:.0f} s)", flush=True)
    table.suite.cache_clear()
    result = {"bench": "faults", "machine": machine(), "quick": options.quick,
              "card": {name: asdict(line) for name, line in lines.items()}}
    reached = sum(line.reached is True for line in lines.values())
    report(result, options.json, [f"{reached} of {len(lines)} goals reached"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

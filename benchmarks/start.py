"""Seconds of processor time, and memory, that a start takes: each in a process of its own, by turns, the least of all rounds.

`over torch` is what a start takes beyond `import torch`, which all but `--help` need. A first round, which writes Python's
bytecode, does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.common import machine, report

COMMAND = "from parl_like.lab.cli import main; raise SystemExit(main({0}))"
STARTS = {"import torch": "import torch", "parl-like --help": COMMAND.format(["--help"]),
          "from parl_like import Robot": "from parl_like import Robot",
          "train total_steps=1": COMMAND.format(["train", "ppo-cartpole", "total_steps=1", "run_dir=RUNS/run"])}


def used(code: str) -> tuple[float, float]:
    """Return the seconds of processor time, and the MiB at most, of a process that runs this code. Raises RuntimeError where it
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen([sys.executable, "-c", code.replace("RUNS", folder)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"this start ended with {child.returncode}: {code}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(args.rounds + 1):
        for name, code in STARTS.items():
            found[name].append(used(code))
    torch = min(found["import torch"][1:])[0]
    cases: dict[str, dict[str, Any]] = {}
    for name, rounds in found.items():
        seconds, mib = min(rounds[1:])
        cases[name] = {"seconds": seconds, "over_torch": seconds - torch, "mib": mib, "rounds": [one for one, _ in rounds[1:]]}
    lines = [f"{name:28} {one['seconds']:6.2f} s  {one['over_torch']:+6.2f} s over torch  {one['mib']:5.0f} MiB"
             for name, one in cases.items()]
    report({"bench": "start", "machine": machine(), "cases": cases}, args.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Resident memory of one process with 256 cooperative CartPole agents that train, and the import's time and side effects."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.common import machine, report

AGENTS = """
import json, sys, threading, psutil
rss = lambda: psutil.Process().memory_info().rss / 2**20
import torch
torch.set_num_threads(1)
base = rss()
from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.models import MLPQ
from parl_like.robots.spaces import spaces_of
func = create_algorithm_func(MLPQ, dict(**spaces_of("CartPole-v1"), hidden=[64, 64]), DQN, {})
helper = lambda: OffPolicyHelper(size=100_000, batch_size=64, learn_every=16)
with Robot("CartPole-v1", n_agents=int(sys.argv[1]), tasks={"RL": ComputationTask(func, helper=helper)}) as robot:
    for _ in robot.iterate(int(sys.argv[2])):
        pass
    print(json.dumps({"torch_alone_mib": base, "robot_mib": rss(), "threads": threading.active_count(),
                      "env_steps": robot.env_steps}))
"""

IMPORT = """
import json, os, sys, threading, time, warnings
warnings.simplefilter("error")
before = dict(os.environ), threading.active_count()
begin = time.perf_counter()
import parl_like
seconds = time.perf_counter() - begin
untouched = before == (dict(os.environ), threading.active_count())
print(json.dumps({"import_s": seconds, "loads_torch": "torch" in sys.modules, "untouched": untouched}))
"""

LIST = """
import json, sys, time
begin = time.perf_counter()
from parl_like.lab.cli import main
code = main(["list"])
print(json.dumps({"list_s": time.perf_counter() - begin, "loads_torch": "torch" in sys.modules, "exit": code}))
"""


def measured(script: str, *argv: str) -> dict[str, Any]:
    out = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench memory", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50_000, help="of all agents together, before memory is read")
    options = parser.parse_args(argv)
    result = {"bench": "memory", "machine": machine(), "agents": options.agents,
              **measured(AGENTS, str(options.agents), str(options.steps)),
              "import": measured(IMPORT), "list": measured(LIST)}
    report(result, options.json, [
        f"{options.agents} agents after {result['env_steps']:,} steps: {result['robot_mib']:.0f} MiB (torch alone "
        f"{result['torch_alone_mib']:.0f} MiB)",
        f"import parl_like: {result['import']['import_s'] * 1e3:.0f} ms, torch loaded: {result['import']['loads_torch']}, "
        f"nothing else touched: {result['import']['untouched']}",
        f"parl-like list: {result['list']['list_s'] * 1e3:.0f} ms, torch loaded: {result['list']['loads_torch']}"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Which laws of `parl-like probe` each algorithm of the catalogue keeps, kept in tests/data/probe_laws.json.

A law that no longer holds, or that begins to hold, is a decision: whoever makes it writes the file anew, and the change shows it.

    python tests/probe_table.py             writes the lines of all anew: up to a minute each
    python tests/probe_table.py DQN PPO     writes theirs alone
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

from parl_like import probe_algorithm
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.algorithm import Algorithm
from parl_like.robots.settings import CATALOGUE, named

FILE = Path(__file__).parent / "data" / "probe_laws.json"


def members():
    """Return the names of all algorithms of the catalogue."""
    found = {name: one for path in CATALOGUE["Algorithm"] for name, one in vars(import_module(path)).items()}
    return sorted(name for name, one in found.items()
                  if isinstance(one, type) and issubclass(one, Algorithm) and one is not Algorithm)


def laws_of(name):
    """Return law → 'holds', 'BROKEN' or 'does not apply', as a probe finds them; of one that needs an option, which."""
    try:
        return {one.law: one.state for one in probe_algorithm(named("Algorithm", name)).findings}
    except ConfigError as error:
        return {"runs": str(error)}


def kept():
    """Return member → law → state, as the file says."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def main(names):
    """Write the lines of these members anew."""
    for name in names:
        began = time.process_time()
        table = {**kept(), name: laws_of(name)}
        lines = [f" {json.dumps(one)}: {json.dumps(table[one])}" for one in members() if one in table]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{name}: {time.process_time() - began:.1f} s", table[name], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or members())

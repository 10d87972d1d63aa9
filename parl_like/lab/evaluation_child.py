"""The process of an evaluation while training goes on: `python -m parl_like.lab.evaluation_child`, see `evaluation_process`."""

import json
import sys
from pathlib import Path

from parl_like.data.storage.archive import ArchiveError
from parl_like.lab import runner
from parl_like.lab.yaml_text import UsageError


def main() -> None:
    """Evaluate what standard input asks for, and print the numbers as JSON."""
    asked, out = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # whatever an environment prints
    try:
        found = runner.evaluate(asked["run"], episodes=asked["episodes"], seed=asked["seed"], which=Path(asked["archive"]),
                                overrides=asked["overrides"], source=asked["source"])
    except (UsageError, ArchiveError) as error:
        sys.exit(" ".join(str(error).split()))
    json.dump({key: value for key, value in found.items() if key not in ("run", "experiment", "step", "seed")}, out)


if __name__ == "__main__":
    main()

"""Expected scores: shipped experiments, trained and evaluated, give the scores that `data/expected_scores.json` holds.

The small set is shortened to seconds and runs in every test; the large one trains to the end, seed 0, and is marked slow:

    python -m pytest -m slow tests/test_expected_scores.py              # the large set
    python tests/test_expected_scores.py --write dqn-cartpole           # after a change that is meant to change it; or all

Where libraries and kernels are those of the file, every episode of training and evaluation is the same. Elsewhere floats round in
another way, and scores agree within a tolerance; those of tables are the same everywhere.
"""

import json
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from test_golden_runs import kernels, one_thread  # noqa: F401  a fixture

from parl_like.environment.hooks import EpisodeStats
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments

FILE = Path(__file__).parent / "data" / "expected_scores.json"
SMALL = {
    "qlearning-frozenlake": {"total_steps": 60_000}, "sarsa-cliffwalking": {"total_steps": 20_000},
    "ppo-cartpole": {"total_steps": 4_096, "n_agents": 8, "unroll": 64, "epochs": 4},
    "dqn-cartpole": {"total_steps": 1_000, "warmup": 200, "batch_size": 32},
    "reinforce-cartpole": {"total_steps": 4_000}, "es-cartpole": {"total_steps": 5_000},
}
"""Experiment → what makes it small."""
LARGE = ("a2c-cartpole", "impala-cartpole", "jl-vpg-cartpole", "ppg-cartpole", "qlearning-frozenlake", "reinforce-cartpole",
         "sarsa-cliffwalking", "vmpo-cartpole")
TABLES = ("qlearning-frozenlake", "sarsa-cliffwalking")
TOLERANCE = {"small": 0.5, "large": 0.1}
"""Of scores on another machine, relative to the larger one of both: what has hardly begun to learn differs more."""
EPISODES = 20


def trained(name, size):
    """Returns of a run: of training in the order of their ends, as a digest and a mean, and of its evaluation."""
    experiment, stats = experiments.get(name), EpisodeStats()
    # by torch, with which the scores were stored
    options = {**(SMALL[name] if size == "small" else {}), "seed": 0, "ComputationTask.native": False}
    config = configs.resolve(experiment.module().Config, experiment.config, options)
    with experiment.module().build(config) as robot:
        robot.run(config.total_steps, stats)
        seen = robot.evaluate(EPISODES)
    digest = blake2b(np.asarray(stats.returns, np.float64).tobytes(), digest_size=16).hexdigest()
    return {"episodes": len(stats.returns), "digest": digest, "mean_return": float(np.mean(stats.returns)),
            "evaluation": [float(value) for value in seen.returns], "score": seen.score}


@cache
def first(name):
    """A run of the small set, for both who ask about it."""
    return trained(name, "small")


def differs(name, size, found, stored, exact):
    """What is not as stored; empty: nothing."""
    if exact or name in TABLES:
        return {key: (found[key], stored[key]) for key in stored if found[key] != stored[key]}
    room = TOLERANCE[size]
    return {key: (found[key], stored[key]) for key in ("mean_return", "score")
            if abs(found[key] - stored[key]) > room * max(abs(found[key]), abs(stored[key]))}


@pytest.fixture(scope="module")
def stored():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SMALL)
def test_the_small_set_gives_the_stored_scores(name, stored):
    assert differs(name, "small", first(name), stored["small"][name], kernels() == stored["kernels"]) == {}


@pytest.mark.parametrize("name", ["sarsa-cliffwalking", "reinforce-cartpole"])
def test_two_runs_are_the_same_everywhere(name):
    assert trained(name, "small") == first(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_the_large_set_gives_the_stored_scores(name, stored):
    assert differs(name, "large", trained(name, "large"), stored["large"][name], kernels() == stored["kernels"]) == {}


def test_another_machine_has_some_room_and_a_table_none():
    stored = {"episodes": 3, "digest": "a", "mean_return": 100.0, "evaluation": [90.0], "score": 90.0}
    near, far = {**stored, "digest": "b", "score": 95.0}, {**stored, "score": 200.0}
    assert differs("ppo-cartpole", "large", near, stored, False) == {}
    assert differs("ppo-cartpole", "large", near, stored, True).keys() == {"digest", "score"}
    assert differs("ppo-cartpole", "small", far, stored, False) == {"score": (200.0, 90.0)}
    assert differs("sarsa-cliffwalking", "small", near, stored, False).keys() == {"digest", "score"}


def write(names):
    """Writes these experiments anew, or all, in both sizes."""
    torch.set_num_threads(1)
    held = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"kernels": kernels(), "small": {}, "large": {}}
    if held["kernels"] != kernels() and names:
        raise SystemExit("this machine's kernels are not those of the file: write all, without a name")
    held["kernels"] = kernels()
    for size, known in (("small", tuple(SMALL)), ("large", LARGE)):
        for name in known:
            if not names or name in names:
                held[size][name] = trained(name, size)
                print(size, name, held[size][name]["score"], flush=True)
            FILE.write_text(lines(held), encoding="utf-8")


def lines(held):
    """The file, with a line for each run."""
    def of(runs):
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(runs.items()))

    sizes = (f' "{size}": {{\n{of(held[size])}}}' for size in ("small", "large"))
    return f'{{"kernels": {json.dumps(held["kernels"])},\n' + ",\n".join(sizes) + "}\n"


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        raise SystemExit(__doc__)
    write(sys.argv[2:])

"""Scheduled checkpoints without the rows of replay buffers: small, resumed with an empty buffer, never called exact."""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, OfflineHelper, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func, load_run
from parl_like.agents.reservoir import ReservoirHelper
from parl_like.algorithms import BC, DQN, PPO
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.storage.archive import read_archive
from parl_like.lab.cli import main
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir
from parl_like.models import MLPQ, MLPActorCritic

WORDS = ["total_steps=400", "checkpoint_every=100", "checkpoint_buffers=false", "keep_checkpoints=9", "n_agents=2", "hidden=[8]",
         "warmup=50", "batch_size=8", "tensorboard=false", "eval_episodes=2", "run_dir=run"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def has_rows():
    """Step → whether the checkpoint has rows."""
    found = {}
    for step in Checkpoints(RunDir.open("run").checkpoints).steps():
        tree, manifest = read_archive(RunDir.open("run").checkpoints / f"{step:09d}")
        buffers = [tree["buffer.RL"]] if "buffer.RL" in tree else [part["buffers"]["RL"] for part in tree["workers"].values()]
        found[step] = "columns" in buffers[0]
        assert manifest.meta["buffers"] == found[step]
    return found


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
def test_scheduled_ones_have_no_rows_and_that_of_the_end_has(driver, capsys):
    assert main(["train", "dqn-cartpole", *WORDS, f"driver={driver}", "workers.count=2"]) == 0
    assert [*has_rows().values()] == [False] * 4 + [True]
    step = sorted(has_rows())[3]
    assert 300 <= step < 400 and main(["resume", "run", "--checkpoint", str(step), "total_steps=500"]) == 0
    assert f"the checkpoint of step {step} has no rows of replay buffers" in capsys.readouterr().out
    with load_run("run") as robot:
        assert robot.env_steps >= 500 and robot.tasks["RL"].learns > 0
    if driver == "cooperative":
        tree, _ = read_archive(RunDir.open("run").checkpoints / f"{max(has_rows()):09d}")
        assert len(tree["buffer.RL"]["columns"]["rew"]) == tree["counters"]["env_steps"] - step, "those of after the resume"


def test_a_resume_from_one_is_not_called_exact(capsys):
    assert main(["train", "dqn-cartpole", *WORDS]) == 0
    (last := RunDir.open("run").checkpoints / "000000400").rename("gone")
    (RunDir.open("run").checkpoints / "LATEST").write_text("000000300\n")
    assert not last.exists() and main(["resume", "run", "--exact", "total_steps=500"]) == 2
    assert "has no rows of replay buffers" in capsys.readouterr().err and not Checkpoints(last.parent).has_rows()
    assert main(["resume", "run", "total_steps=500"]) == 0


ASKS = """
import os, signal
from parl_like.environment.hooks import EveryNSteps

class Asks(EveryNSteps):
    def __init__(self):
        super().__init__(150, lambda robot: os.kill(os.getpid(), signal.SIGUSR1))
"""


def test_those_that_are_asked_for_have_rows(monkeypatch):
    Path("asks.py").write_text(ASKS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["train", "dqn-cartpole", *WORDS, "hooks=[asks:Asks]"]) == 0
    sys.modules.pop("asks")
    rows = has_rows()
    assert any(rows[step] for step in rows if 150 <= step < 200) and not rows[100] and not rows[200]


def test_rows_that_would_not_come_again_stay():
    """On-policy segments, recorded rows in memory, and reservoirs."""
    env = gym.make("CartPole-v1")
    spaces = dict(obs=env.observation_space, act=env.action_space, hidden=[4])

    def state(helper, model, algorithm, source="CartPole-v1"):
        task = ComputationTask(create_algorithm_func(model, spaces, algorithm, {}), helper)
        with Robot(source, tasks={"RL": task}, seed=0) as robot:
            robot.run(20)
            robot.checkpoint_boundary()
            kept = robot.state_dict(buffers=False)["buffer.RL"]
            robot.save("saved", buffers=False)
            robot.load("saved")
            return kept, robot.buffers["RL"]

    kept, buffer = state(lambda: OffPolicyHelper(size=50, batch_size=4), MLPQ, DQN)
    assert "columns" not in kept and len(buffer) == 0
    kept, buffer = state(lambda: OnPolicyHelper(unroll=64), MLPActorCritic, PPO)
    assert "columns" in kept and len(buffer) == len(kept["columns"]["rew"])
    rows = ReplayBuffer(8)
    for i in range(8):
        rows.add({"obs": np.zeros(4, np.float32), "act": i % 2, "rew": 1.0, "terminated": i % 4 == 3, "truncated": False})
    kept, buffer = state(lambda: OfflineHelper(rows, batch_size=4), MLPActorCritic, BC, None)
    assert "columns" in kept and len(buffer) == 8
    assert not ReservoirHelper.refills

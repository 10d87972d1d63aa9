"""Recorded data sets: what is played is what is written, with where it is from; runs learn from it, with normalised scores."""

import json
import re

import gymnasium as gym
import numpy as np
import pytest
from masked_pick import Locked

from parl_like import ReplayBuffer
from parl_like.data.datasets import from_minari, rows_hash, to_arrays
from parl_like.lab import recorded, recording
from parl_like.lab.cli import main
from parl_like.lab.recorded import provenance_of
from parl_like.lab.yaml_text import ConfigError, UsageError
from parl_like.run.evaluation import Episodes

ARGS = ["total_steps=600", "n_agents=2", "warmup=100", "learn_every=8", "checkpoint_every=300", "hidden=[16]",
        "tensorboard=false", "eval_episodes=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with short runs: DQN and PPO on CartPole, SAC on Pendulum."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "dqn-cartpole", *ARGS, "run_dir=dqn"]) == 0
        assert main(["train", "ppo-cartpole", "total_steps=64", "n_agents=2", "unroll=32", "tensorboard=false", "eval_episodes=1",
                     "run_dir=ppo"]) == 0
        assert main(["train", "sac-pendulum", "total_steps=500", "n_agents=1", "warmup=400", "hidden=[8]", "tensorboard=false",
                     "eval_episodes=1", "run_dir=sac"]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(runs, monkeypatch):
    monkeypatch.chdir(runs)


@pytest.mark.parametrize("policy", recorded.POLICIES)
def test_each_policy_gives_whole_episodes_and_says_where_they_are_from(policy, tmp_path, capsys):
    out = tmp_path / "data"
    assert main(["record", "dqn", "--policy", policy, "--episodes", "3", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    buffer, found = ReplayBuffer.load(out), provenance_of(out)
    rows = to_arrays(buffer)
    ends = rows["terminated"] | rows["truncated"]
    assert ends.sum() == 3 == found.episodes and ends[-1] and len(buffer) == found.rows == said["rows"]
    assert (rows["obs_next"][:-1][~ends[:-1]] == rows["obs"][1:][~ends[:-1]]).all(), "rows follow each other"
    returns = np.add.reduceat(rows["rew"], np.r_[0, np.flatnonzero(ends)[:-1] + 1])
    assert (found.mean_return, found.std_return) == (pytest.approx(returns.mean()), pytest.approx(returns.std()))
    assert (found.policy, found.experiment, found.env, found.seed) == (policy, "dqn-cartpole", "CartPole-v1", 0)
    assert found.differs["total_steps"] == 600 and found.step in {"random": (0,), "medium": (0, 304, 608)}.get(policy, (608,))
    assert found.sha256 == rows_hash(buffer) == said["sha256"] and 10 < found.random_return < 40
    assert found.expert_return == json.loads(open("dqn/result.json").read())["evaluation"]["mean_return"]


def test_the_expert_s_actions_are_those_of_the_policy_in_the_environment_s_units(tmp_path):
    recording.record("sac", tmp_path / "data", episodes=2)
    rows = to_arrays(ReplayBuffer.load(tmp_path / "data"))
    assert len(rows["act"]) == 400 and np.abs(rows["act"]).max() <= 2.0
    with recording.runner.load_run("sac") as robot:
        np.testing.assert_allclose(robot.act(rows["obs"]), rows["act"], atol=1e-5)
    env = gym.make("Pendulum-v1")
    env.reset()
    state = rows["obs"][7]
    env.unwrapped.state = np.array([np.arctan2(state[1], state[0]), state[2]])
    obs, rew, *_ = env.step(rows["act"][7])
    np.testing.assert_allclose(obs, rows["obs_next"][7], atol=1e-4)
    assert rew == pytest.approx(rows["rew"][7], abs=1e-4)


def test_recording_twice_gives_the_same_rows_and_another_seed_others(tmp_path):
    found = [recording.record("dqn", tmp_path / str(i), policy=policy, episodes=1, seed=seed).sha256
             for i, (policy, seed) in enumerate([("expert", None)] * 2 + [("random", 5)] * 2 + [("random", 6)])]
    assert found[0] == found[1] and found[2] == found[3] != found[4] and len(set(found)) == 3


def test_the_replay_is_what_training_stored(tmp_path):
    recording.record("dqn", tmp_path / "data", policy="replay", episodes=10_000)
    rows = to_arrays(ReplayBuffer.load(tmp_path / "data"))
    with recording.runner.load_run("dqn") as robot:
        stored = to_arrays(robot.buffers["RL"])
    known = {tuple(row) for row in stored["obs"].tolist()}
    assert all(tuple(row) in known for row in rows["obs"].tolist()) and len(rows["obs"]) > 400
    with pytest.raises(UsageError, match="ppo keeps no rows that it has learned from"):
        recording.record("ppo", tmp_path / "none", policy="replay")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_a_minari_data_set_has_the_same_rows(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    found = recording.record("sac", tmp_path / "data", episodes=1, minari="pendulum/expert-v0")
    assert rows_hash(from_minari("pendulum/expert-v0")) == found.sha256


def test_usage_is_told_in_one_line(tmp_path, capsys):
    for words, message in (
            (["dqn"], "--out DIR is needed"), (["dqn", "--out", "x", "--policy", "expart"], "did you mean 'expert'?"),
            (["none", "--out", "x"], "no run directory"), (["dqn", "--out", "x", "--checkpoint", "7"], "no checkpoint"),
            (["cartpole-replay", "--episodes", "3"], "leave out --episodes"),
            (["dqn", "--out", "dqn"], "something else; choose another path")):
        assert main(["record", *words]) == 2
        assert message in capsys.readouterr().err


def test_shipped_data_sets_can_be_made_and_are_found_by_name(monkeypatch, tmp_path):
    from parl_like.lab import experiment as experiments

    for name, one in recorded.recipes().items():
        assert experiments.get(one.experiment) and name.startswith(f"{one.experiment.split('-')[1]}-")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="make it with `parl-like record cartpole-replay`"):
        recorded.directory_of("cartpole-replay")
    settings = {"robot.tasks.RL.OfflineHelper.data": "cartpole-replay", "data": "else", "n": 3}
    assert recorded.missing(settings) == ["cartpole-replay"]
    (tmp_path / "data" / "cartpole-replay").mkdir(parents=True)
    assert recorded.directory_of("cartpole-replay") == "data/cartpole-replay" and recorded.directory_of("mine") == "mine"
    assert recorded.missing({"data": "cartpole-replay"}) == []


def test_random_play_keeps_to_the_mask_of_each_part_of_an_action():
    assert [len(one.rewards) for one in recording.at_random(Locked, 5, np.random.default_rng(0))] == [10] * 5


def test_normalised_scores_lie_between_random_and_expert():
    seen = Episodes([20.0, 40.0], [1, 1])
    assert "normalized_score" not in seen.numbers()
    seen.reference = (20.0, 220.0)
    assert seen.numbers()["normalized_score"] == pytest.approx(5.0)
    seen.reference = (20.0, 20.0)
    assert "normalized_score" not in seen.numbers(), "of a policy that is as good as chance there is no scale"


def test_a_run_from_recorded_rows_has_a_curve_of_evaluations_and_ends_with_code_0(tmp_path, capsys):
    """Nobody acts in training; the curve is of evaluations in the environment that is named."""
    recording.record("dqn", tmp_path / "data", policy="random", episodes=20)
    run = tmp_path / "run"
    assert main(["train", "bc-cartpole", f"data={tmp_path / 'data'}", "total_steps=60", "batch_size=16", "eval_every=20",
                 "eval_episodes=3", "metrics_every=20", "tensorboard=false", f"run_dir={run}"]) == 0
    said = "".join(capsys.readouterr())
    assert f"learning curve: {run}/plots/learning_curve.png" in said
    result, found = json.loads((run / "result.json").read_text()), provenance_of(tmp_path / "data")
    low, high = found.reference
    numbers = result["evaluation"]
    assert numbers["normalized_score"] == numbers["score"] == pytest.approx(100 * (numbers["mean_return"] - low) / (high - low))
    header, *lines = (run / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("eval/normalized_score")
    assert len([line for line in lines if line.split(",")[column]]) == 4, "at 0, 20, 40 and 60 updates"
    assert re.search(r"60 updates", said)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert main(["eval", str(run), "--episodes", "2"]) == 2 and "expected a directory" in capsys.readouterr().err
    assert main(["eval", str(run), "--episodes", "2", f"data={tmp_path / 'moved'}"]) == 0
    for total in (80, 100):  # the second one's checkpoint knows the new place
        assert main(["resume", str(run), f"total_steps={total}", f"data={tmp_path / 'moved'}"]) == 0
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    recording.record("dqn", tmp_path / "other", policy="random", episodes=21)
    assert main(["resume", str(run), "total_steps=120", f"data={tmp_path / 'other'}"]) == 1
    assert "put those rows back" in capsys.readouterr().err


class Rude(gym.Env):
    """Gives the same array again and again, and halves in place the action that it takes."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.shown = np.zeros(1, np.float32)
        return self.shown, {}

    def step(self, action):
        self.shown += 1
        action *= 0.5
        return self.shown, 0.0, self.shown[0] == 3, False, {}


def test_what_an_environment_changes_in_place_is_recorded_as_it_was():
    episodes = []
    env = recording.EpisodeRecorder(Rude(), episodes)
    env.reset()
    for value in (0.25, 0.5, 1.0):
        env.step(np.array([value], np.float32))
    np.testing.assert_array_equal(episodes[0].observations[:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(episodes[0].actions[:, 0], [0.25, 0.5, 1.0])

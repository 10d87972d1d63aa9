"""MuZero's robot: its two tasks, whose rows say what, one prediction for all agents, masks, exact resumes, and refusals."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.envs.games import Kuhn
from parl_like.envs.games.all_seats import AllSeats
from parl_like.lab import config as configs
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import muzero
from parl_like.run.robot import Robot

SMALL = {"LatentWorld.size": 8, "LatentWorld.hidden": [16], "LatentPrediction.hidden": [16], "n_envs": 4, "simulations": 4,
         "seed": 3, "total_steps": 400, "n_step": 4}
SMALL |= {f"{task}.OffPolicyHelper.{key}": value for task in ("model", "prediction")
          for key, value in (("warmup", 64), ("batch_size", 16), ("learn_every", 8))}
TICTACTOE = {"game": "tic-tac-toe", "n_step": 9, "gamma": 1.0}


def build(**overrides):
    return muzero.build(configs.resolve(muzero.Config, {}, {**SMALL, **overrides}))


def rows_of(robot, task):
    """All rows of a task's buffer."""
    buffer = robot.buffers[task]
    return buffer.gather(buffer.sample_indices(0))


class Masked(gym.Env):
    """Three actions from 5 on, of which the one that is forbidden changes with each step; taking it raises."""

    observation_space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "at": gym.spaces.Discrete(3)})
    action_space = gym.spaces.Discrete(3, start=5)

    def observe(self):
        return {"mask": (np.arange(3) != self.at % 3).astype(np.int8), "at": self.at % 3}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {}

    def step(self, action):
        assert action in (5, 6, 7) and (action - 5) != self.at % 3, "an illegal action"
        self.at += 1
        return self.observe(), float(action == 7), False, self.at == 7, {}


def test_the_two_tasks_learn_together():
    with build() as robot:
        before = {name: value.clone() for name, value in robot.tasks["model"].algorithm.model.state_dict().items()}
        robot.run(200)
        model, prediction = robot.tasks["model"], robot.tasks["prediction"]
        assert model.learns == prediction.learns > 0
        assert model.algorithm.model.world is prediction.algorithm.model.world
        assert model.algorithm.model.prediction is prediction.algorithm.model.prediction
        after = model.algorithm.model.state_dict()
        changed = {name.split(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}
        assert changed == {"world", "prediction", "reward"}
        held = sum(len(group["params"]) for task in (model, prediction) for one in task.optimizers.values()
                   for group in one.param_groups)
        assert held == len(list(model.algorithm.model.parameters())), "each parameter in one optimiser"


def test_a_simulation_is_one_prediction_for_all_agents():
    with build(n_agents=3, total_steps=2000) as robot:
        robot.run(120)
        counters = robot.wrappers["model"].predictions.counters
        assert counters.requests / counters.batches == pytest.approx(3, abs=0.2)
        assert counters.batches == pytest.approx(robot.env_steps / 12 * 5, rel=0.2), "the root, and four simulations"
        assert robot.wrappers["prediction"].predictions.counters.requests == 0


def test_rows_have_what_search_found():
    with build(**TICTACTOE, n_envs=2) as robot:
        robot.run(200)
        rows = rows_of(robot, "prediction")
        policy, mask, player = rows["search_policy"], rows["obs.mask"], rows["player"]
        assert policy.sum(1) == pytest.approx(1) and not policy[mask == 0].any(), "illegal moves have no visits"
        assert np.allclose(policy * 4, (policy * 4).round(), atol=1e-5), "shares of 4 visits"
        assert (mask[np.arange(len(mask)), rows["act"]] == 1).all()
        assert (player == (9 - mask.sum(1)) % 2).all(), "they move in turn"
        assert set(rows["rew"][rows["terminated"]]) <= {0.0, 1.0}, "who moves last wins, or nobody does"
        assert not rows["rew"][~rows["terminated"]].any() and (np.abs(rows["root_value"]) <= 1.5).all()


def test_masks_and_actions_that_begin_elsewhere():
    """The environment raises where an illegal action is taken, in learning and in evaluations."""
    gym.register("MaskedForMuZero-v0", Masked)
    try:
        with build(env="MaskedForMuZero-v0") as robot:
            robot.run(160)
            assert robot.tasks["model"].learns > 0 and robot.evaluate(2, seed=0).n_episodes == 2
            assert set(rows_of(robot, "model")["act"]) == {0, 1, 2}
    finally:
        del gym.registry["MaskedForMuZero-v0"]


@pytest.mark.parametrize("more", [{}, TICTACTOE], ids=["cartpole", "tictactoe"])
def test_a_run_is_the_same_evaluated_saved_or_resumed(more, tmp_path):
    left = []
    for run in ("whole", "evaluated", "resumed"):
        with build(**more, trace=True, seed=9 if run == "resumed" else 3) as robot:
            if run == "resumed":
                robot.load(tmp_path / "evaluated")
            else:
                robot.run(96)
                robot.checkpoint_boundary()
            if run == "evaluated":
                robot.save(tmp_path / "evaluated")
                robot.evaluate(2, seed=1)
            robot.run(96)
            robot.checkpoint_boundary()
            left.append((robot.trace_hash(), robot.env_steps, robot.tasks["prediction"].algorithm.model.weights_hash(),
                         robot.tasks["model"].algorithm.model.weights_hash()))
    assert left[0] == left[1] == left[2]


def test_threads_do_what_one_thread_does():
    def run(**more):
        with build(trace=True, **more) as robot:
            robot.run(200)
            return robot.trace_hash(), robot.tasks["model"].algorithm.model.weights_hash()

    assert run() == run(driver="threads")


def test_its_score_in_games():
    with build(**TICTACTOE, eval_games=5) as robot:
        robot.run(60)
        first, again = (robot.evaluate(1, seed=0).score for _ in range(2))
        assert 0 <= first <= 1 and first == again
        kept = robot.tasks["model"].row_slots.claim(robot, 1)
        robot.evaluate(1, seed=0)
        assert robot.tasks["model"].row_slots.claim(robot, 1) == kept + 1, "an evaluation gives its rows back"


def test_what_is_refused():
    for name, value in (("simulations", 0), ("alpha", 0.0), ("share", 1.5), ("drawn_moves", -1)):
        with pytest.raises(ValueError, match=f"{name}"):
            muzero.MuZeroAgent(**{name: value})
    with pytest.raises(ConfigError, match="MuZero is for Discrete ones"):
        build(env="Pendulum-v1")
    with pytest.raises(ValueError, match="MuZeroAgent cannot play this game"):
        Robot(lambda: AllSeats(Kuhn()), tasks={}, agent=muzero.MuZeroAgent)

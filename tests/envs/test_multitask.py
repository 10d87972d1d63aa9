"""Several tasks in one environment, drawn evenly, by chances, by options, and by learning progress."""

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot
from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.multitask import Multitask


class Paid(gym.Env):
    """One step, paid by what `rewards` gives next."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, rewards):
        self.rewards, self.n = rewards, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        return np.zeros(2, np.float32), {}

    def step(self, act):
        self.n += 1
        return np.zeros(2, np.float32), float(self.rewards(self.n)), True, False, {}


def played(env, n, **first):
    found = Counter()
    for i in range(n):
        found[env.reset(**(first if i == 0 else {}))[1]["task"]] += 1
        env.step(0)
    return found


def test_tasks_are_drawn_evenly_or_by_chances():
    made = [lambda: Paid(lambda n: 0.0)] * 3
    assert min(played(Multitask(made), 600, seed=0).values()) > 160
    counts = played(Multitask(made, [0.0, 1.0, 3.0]), 600, seed=0)
    assert counts[0] == 0 and 2.2 < counts[2] / counts[1] < 4
    assert played(Multitask(made), 50, seed=3) == played(Multitask(made), 50, seed=3)


def test_the_observation_says_which_and_options_choose():
    env = Multitask([lambda: Paid(lambda n: 0.0)] * 2)
    obs, info = env.reset(seed=0, options={"task": 1, "more": 5})
    assert env.observation_space.contains(obs) and obs["task"] == info["task"] == 1 and env.envs[1].options == {"more": 5}
    assert env.step(0)[4]["task"] == 1
    assert Multitask([lambda: Paid(lambda n: 0.0)], shows_task=False).reset(seed=0)[0].shape == (2,)


def test_the_task_in_which_returns_move_is_played_most():
    """Of task 0 returns stay, of task 1 they rise."""
    env = Multitask([lambda: Paid(lambda n: 7.0), lambda: Paid(lambda n: 0.1 * n)], "progress", share=0.2)
    counts = played(env, 400, seed=0)
    assert counts[1] > 330 and counts[0] > 15
    np.testing.assert_allclose(env.chances(), [0.1, 0.9])


@pytest.mark.parametrize("choose", ["even", "progress"])
def test_a_state_goes_on_as_before(choose):
    made = [lambda: gym.make("CartPole-v1"), lambda: gym.make("CartPole-v1")]
    one, two = Multitask(made, choose), Multitask(made, choose)
    for env, seed in ((one, 1), (two, 2)):
        env.reset(seed=seed)

    def go_on(env, n):
        seen = []
        for i in range(n):
            obs, _, terminated, truncated, info = env.step(i % 2)
            seen.append((obs["obs"].tolist(), info["task"]))
            if terminated or truncated:
                obs, info = env.reset()
                seen.append((obs["obs"].tolist(), info["task"]))
        return seen

    go_on(one, 150)
    kept = clone_state(one)
    expected = go_on(one, 150)
    restore_state(two, kept)
    assert go_on(two, 150) == expected


@pytest.mark.parametrize("choose", ["even", [0.2, 0.3, 0.5]])
def test_a_seed_says_all_episodes_after_it_whatever_was_played_before(choose):
    def seen(env):
        found = []
        for i in range(12):
            obs, info = env.reset(seed=5 if i == 0 else None)
            found.append((obs["obs"].tolist(), info["task"]))
            for j in range(3 + 4 * info["task"]):
                if env.step(j % 2)[2]:
                    break
        return found

    env = Multitask([lambda: gym.make("CartPole-v1")] * 3, choose)
    once = seen(env)
    for _ in range(40):
        env.reset()
        while not any(env.step(1)[2:4]):
            pass
    assert seen(env) == once


def test_a_robot_learns_in_it():
    with Robot.of("PPO", lambda: Multitask([lambda: gym.make("CartPole-v1")] * 2), n_agents=2, unroll=16, epochs=1,
                  minibatches=1) as robot:
        robot.run(64)
        assert robot.tasks["RL"].learns > 0


@pytest.mark.parametrize("args", [
    ([],), ([lambda: gym.make("CartPole-v1"), lambda: gym.make("Pendulum-v1")],), ([lambda: gym.make("CartPole-v1")], "often"),
    ([lambda: gym.make("CartPole-v1")], [0.0]), ([lambda: gym.make("CartPole-v1")], [1.0, 1.0]),
    ([lambda: gym.make("CartPole-v1")], [float("nan")]), ([lambda: gym.make("CartPole-v1")], "even", True, 2.0),
])
def test_bad_input(args):
    with pytest.raises(ValueError, match="Multitask"):
        Multitask(*args)


@pytest.mark.parametrize("task", [2, -1, 1.7, True, "1", None, float("nan"), np.array([0, 1])])
def test_a_task_that_is_none_is_refused(task):
    env = Multitask([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ValueError, match="expected one of 0 to 1"):
        env.reset(options={"task": task})
    assert env.reset(options={"task": np.int64(1)})[1]["task"] == 1

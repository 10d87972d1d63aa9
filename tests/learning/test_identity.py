"""Learning in seconds: the reward is 1 iff the action repeats the observation, 4 values, 100 steps. Random play scores 25."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import A2C, DQN, PPO
from parl_like.models import MLPQ, MLPActorCritic, RecurrentActorCritic

VALUES = 4


class Identity(gym.Env):
    observation_space = gym.spaces.Discrete(VALUES)
    action_space = gym.spaces.Discrete(VALUES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.obs = 0, int(self.np_random.integers(VALUES))
        return self.obs, {}

    def step(self, act):
        rew = float(act == self.obs)
        self.steps, self.obs = self.steps + 1, int(self.np_random.integers(VALUES))
        return self.obs, rew, False, self.steps == 100, {}


class Continuous(Identity):
    """The action is the number itself, scaled to [−1, 1]; the reward falls with the distance."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, act):
        rew = 1.0 - abs(float(act[0]) - (2 * self.obs / (VALUES - 1) - 1))
        obs, _, *rest = super().step(0)
        return obs, rew, *rest


class Recall(Identity):
    """The observation must be repeated one step later, so without memory nothing better than chance is possible."""

    def reset(self, *, seed=None, options=None):
        self.before = 0
        return super().reset(seed=seed, options=options)

    def step(self, act):
        rew, self.before = float(act == self.before), self.obs
        obs, _, *rest = super().step(0)
        return obs, rew, *rest


def learned(env, model, algorithm, helper, steps, n_agents=4, **options):
    spaces = {"obs": env.observation_space, "act": env.action_space}
    func = create_algorithm_func(model, {**spaces, **options.pop("net", {})}, algorithm, options)
    with Robot(env, tasks={"RL": ComputationTask(func, helper)}, n_agents=n_agents, seed=3) as robot:
        for _ in robot.iterate(steps):
            pass
        return robot.evaluate(5, seed=9).mean_return


@pytest.mark.parametrize("case", ["dqn", "a2c", "ppo"])
def test_learns_to_repeat_what_it_sees(case):
    if case == "dqn":
        score = learned(Identity, MLPQ, DQN, lambda: OffPolicyHelper(size=2000, batch_size=32, learn_every=2), 1200,
                        gamma=0.0, lr=5e-3, target_period=50, epsilon=0.5)
    else:
        learner, unroll = (A2C, 8) if case == "a2c" else (PPO, 32)
        score = learned(Identity, MLPActorCritic, learner, lambda: OnPolicyHelper(unroll=unroll), 1200, gamma=0.0,
                        lr=3e-3 if case == "ppo" else 1e-2)
    assert score >= 90, score


def test_continuous_actions_learn_to_repeat_what_they_see():
    score = learned(Continuous, MLPActorCritic, PPO, lambda: OnPolicyHelper(unroll=16), 2400, gamma=0.0, lr=3e-3)
    assert score >= 90, score  # always acting in the middle scores 33


def test_memory_recalls_what_it_saw_before():
    score = learned(Recall, RecurrentActorCritic, PPO, lambda: OnPolicyHelper(unroll=20), 2400, n_agents=8, gamma=0.0, lr=5e-3,
                    net={"size": 32})
    blind = learned(Recall, MLPActorCritic, PPO, lambda: OnPolicyHelper(unroll=20), 2000, n_agents=8, gamma=0.0, lr=5e-3)
    assert score >= 85 and blind <= 40, (score, blind)

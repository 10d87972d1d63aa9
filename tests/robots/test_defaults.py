"""What `Robot.of` does where nobody says anything: it explores before it learns, and its values stay where returns can be."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot


@pytest.mark.parametrize(("algorithm", "warmup"), [("TD3", 1000), ("DDPG", 256), ("SAC", 256), ("MPO", 256), ("TQC", 256)])
def test_off_policy_members_act_at_random_before_their_first_update(algorithm, warmup):
    """An untrained deterministic policy with its noise has a deviation of 0.10 to 0.16; uniform draws from [−1, 1] have 0.58."""
    with Robot.of(algorithm, "Pendulum-v1", hidden=[8], batch_size=16, seed=1) as robot:
        robot.run(warmup - 1)
        acts = robot.buffers["RL"].columns["act"][: warmup - 1]
        assert robot.tasks["RL"].learns == 0 and 0.53 < acts.std() < 0.62 and abs(acts.mean()) < 0.1
        robot.run(20)
        assert robot.tasks["RL"].learns > 0


def test_a_warmup_of_the_users_own_counts():
    with Robot.of("TD3", "Pendulum-v1", hidden=[8], batch_size=16, warmup=64, random_steps=0) as robot:
        robot.run(80)
        assert robot.tasks["RL"].learns == 17 and robot.agents[0].helpers["RL"].random_until == 0


def test_rows_of_a_data_set_wait_for_no_warmup():
    """`parl-like train sac-pendulum helper=OfflineHelper data=rows`, whose experiment says when it learns online."""
    with Robot.of("SAC", "Pendulum-v1", hidden=[8], batch_size=16, n_agents=1) as robot:
        robot.collect(n_step=100)
        data = robot.buffers["RL"]
    options = {"helper": "OfflineHelper", "data": data, "warmup": 1000, "random_steps": 0}
    with Robot.of("SAC", "Pendulum-v1", hidden=[8], batch_size=16, **options) as robot:
        robot.run(10)
        assert robot.tasks["RL"].learns == 10


class Clock(gym.Env):
    """Truncated after 5 steps. The observation is the time, and nobody acts at the last one, whose value is bootstrapped."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def obs(self):
        return np.array([self.t / 5, 1.0], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}

    def step(self, act):
        self.t += 1
        return self.obs(), float(act == 0), False, self.t >= 5, {}


def test_values_of_a_short_truncated_task_stay_below_the_largest_return():
    """Rewards are at most 1 and γ is 0.99, so no value is above 100. With `target_period=4` values grew on their own errors."""
    largest = []
    for options in ({}, {"target_period": 4}):
        with Robot.of("BootstrappedDQN", Clock, seed=1, **options) as robot:
            robot.run(600)
            largest.append(robot.metrics()["RL/q"])
    assert 0 < largest[0] < 100 < largest[1]

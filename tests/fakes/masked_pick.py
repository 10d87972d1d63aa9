"""An environment whose observations say which actions are legal."""

import gymnasium as gym
import numpy as np


class Pick(gym.Env):
    """The reward is what is shown of the action; one of three actions is not legal, which its observation says, and in the last
    state none is."""

    observation_space = gym.spaces.Dict({"worth": gym.spaces.Box(0, 1, (3,), np.float32), "mask": gym.spaces.MultiBinary(3)})
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def shown(self):
        self.obs = {"worth": self.np_random.random(3, np.float32), "mask": np.full(3, self.steps < 20, np.int8)}
        self.obs["mask"][self.np_random.integers(3)] = 0
        return self.obs

    def step(self, act):
        assert self.obs["mask"][act]
        rew, self.steps = float(self.obs["worth"][act]), self.steps + 1
        return self.shown(), rew, False, self.steps == 20, {}

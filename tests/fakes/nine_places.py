"""The environment of the tests of `thinker.make`."""

import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Nine places; action a leads from x to 2x + a. 4 pays, 7 ends, 8 steps are the limit. The observation is (x, t).

    A test that shows something else has `seen` and `observation_space` of its own.
    """

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(0, 9, (2,), np.float32)
    pay = 1.0

    def seen(self):
        return np.array([self.x, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = int(self.np_random.integers(7)), 0
        return self.seen(), {}

    def step(self, act):
        self.x, self.t = (2 * self.x + int(act)) % 9, self.t + 1
        return self.seen(), self.pay * (self.x == 4), self.x == 7, self.t == 8, {"cost": self.x == 5}

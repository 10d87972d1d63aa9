"""An environment for the tests of those who learn a policy."""

import gymnasium as gym
import numpy as np

OBS, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


class Wander(gym.Env):
    """Three numbers that wander; action 1 is rewarded where the first is above 0."""

    observation_space, action_space = OBS, TWO

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        self.at = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.at

    def step(self, act):
        rew, self.t = float(act == (self.at[0] > 0)), self.t + 1
        return self.look(), rew, False, self.t == 10, {}

"""An environment whose observations say which actions are legal."""

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state


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


class Locked(gym.Env):
    """Of three doors, and of two keys, one is locked at each step: to try it is an error."""

    observation_space = gym.spaces.Dict({"mask": gym.spaces.Dict({
        "door": gym.spaces.MultiBinary(3), "key": gym.spaces.MultiBinary(2)})})
    action_space = gym.spaces.Dict({"door": gym.spaces.Discrete(3, start=1), "key": gym.spaces.Discrete(2)})

    def obs(self):
        self.mask = {"door": np.ones(3, np.int8), "key": np.ones(2, np.int8)}
        for part in self.mask.values():
            part[self.np_random.integers(len(part))] = 0
        return {"mask": {name: part.copy() for name, part in self.mask.items()}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs(), {}

    def step(self, act):
        assert self.mask["door"][act["door"] - 1] and self.mask["key"][act["key"]], "locked"
        self.steps += 1
        return self.obs(), 0.0, False, self.steps == 10, {}

    def clone_state(self):
        return {"rng": rng_state(self.np_random), "mask": self.mask, "steps": self.steps}

    def restore_state(self, state):
        set_rng_state(self.np_random, state["rng"])
        self.mask, self.steps = state["mask"], state["steps"]

"""Environments that step together give, step by step, what gymnasium's SyncVectorEnv gives of those that own their arrays."""

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_like.environment.together import EnvsTogether

BOX = gym.spaces.Box(-9.0, 9.0, (2, 3), np.float32)
SPACES = {
    "box": BOX, "number": gym.spaces.Box(-9.0, 9.0, (), np.float64), "pixels": gym.spaces.Box(0, 255, (4,), np.uint8),
    "choice": gym.spaces.Discrete(5), "dict": gym.spaces.Dict(a=BOX, b=gym.spaces.Tuple([gym.spaces.MultiBinary(3), BOX])),
}  # fmt: skip


class Drawn(gym.Env):
    """Observations, rewards, ends and infos drawn at random; `wrong`: a list, or an array of float64, at some steps."""

    def __init__(self, space, act, wrong=False):
        self.observation_space, self.action_space, self.wrong = space, act, wrong

    def _obs(self):
        space = deepcopy(self.observation_space)
        space.seed(int(self.np_random.integers(2**31)))
        obs = space.sample()
        if self.wrong and isinstance(obs, np.ndarray) and obs.dtype.kind == "f" and self.np_random.random() < 0.3:
            return obs.tolist() if self.np_random.random() < 0.5 else obs.astype(np.float64)
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {"begun": self.np_random.random()}

    def step(self, action):
        assert self.action_space.contains(action)
        info = {"number": self.np_random.random(), "word": "x"} if self.np_random.random() < 0.3 else {}
        terminated, truncated = (bool(self.np_random.random() < 0.15) for _ in range(2))
        return self._obs(), np.float32(self.np_random.random()), terminated, truncated, info


def check_equal(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            check_equal(ours[key], theirs[key])
    elif isinstance(ours, (tuple, list)) or (isinstance(ours, np.ndarray) and ours.dtype == object):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_equal(one, other)
    else:
        assert np.array_equal(ours, theirs) and np.asarray(ours).dtype == np.asarray(theirs).dtype


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("act", [gym.spaces.Discrete(3, start=1), gym.spaces.Dict(x=BOX, y=gym.spaces.Discrete(2))])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_steps_are_those_of_gymnasium(space, act, wrong):
    makers = [lambda: Drawn(space, act, wrong)] * 3
    ours, theirs = EnvsTogether([make() for make in makers]), SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    check_equal(ours.reset(seed=3), theirs.reset(seed=3))
    ours.action_space.seed(0)
    kept = []
    for i in range(30):
        actions = ours.action_space.sample()
        out = ours.step(actions)
        kept.append((out, deepcopy(out)))
        check_equal(out, theirs.step(actions))
        if i % 10 == 9:
            mask = np.array([True, False, True])
            check_equal(ours.reset(options={"reset_mask": mask}), theirs.reset(options={"reset_mask": mask}))
    for out, copy in kept:  # what was given is changed no more
        check_equal(out, copy)


class Reusing(Drawn):
    """One array for all observations of all environments."""

    memory = np.zeros(3, np.float32)

    def _obs(self):
        self.memory[:] = self.np_random.random(3)
        return self.memory


def test_environments_may_write_into_one_array():
    space = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)
    env = EnvsTogether([Reusing(space, gym.spaces.Discrete(3)) for _ in range(3)])
    env.reset(seed=0)
    for _ in range(30):
        obs, _, terminated, truncated, info = env.step(np.zeros(3, np.int64))
        assert len(np.unique(obs[:, 0])) == 3
        for i in np.flatnonzero(terminated | truncated):
            assert not np.array_equal(info["final_obs"][i], obs[i])


def test_wrong_numbers_of_actions_and_wrong_shapes_are_refused():
    env = EnvsTogether([Drawn(BOX, gym.spaces.Discrete(3)) for _ in range(2)])
    env.reset(seed=0)
    with pytest.raises(ValueError, match="zip"):
        env.step(np.zeros(3, np.int64))
    env.envs[1]._obs = lambda: np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(2, np.int64))

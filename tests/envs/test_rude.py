"""Environments that hand out their own objects and change them in place: what has been handed on stays as it was."""

import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_like.envs.make import make_env
from parl_like.envs.vector import make_vector_env
from parl_like.envs.wrappers import ActionRepeat, NormalizeObservation

KINDS = ["sync", "thread", "process"]


class Rude(gym.Env):
    """One array, one dict, one list for ever; all environments of a process share the dict of their infos, too."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    INFO = {"deep": {"array": np.zeros(2)}, "array": np.zeros(2), "list": [0], "who": None}

    def __init__(self, length=3, shape=(), render_mode=None):
        self.obs, self.rew, self.length, self.render_mode = np.zeros(2, np.float32), np.zeros(shape), length, render_mode
        self.picture = np.zeros((4, 4, 3), np.uint8)
        self.number, self.taken = 0.0, []

    def tell(self):
        self.number += 1.0
        self.obs[:] = self.number
        self.rew[...] = self.number
        self.picture[:] = int(self.number)
        info = self.INFO
        info["array"][:] = info["deep"]["array"][:] = info["list"][0] = self.number
        info["who"] = (self.first, self.number)
        return info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first = seed if seed is not None else self.first
        self.t = 0
        return self.obs, self.tell()

    def step(self, action):
        self.taken.append(action.tolist())
        action *= 0.5  # even what it is given
        self.t += 1
        info = self.tell()
        rew = self.rew if self.rew.shape else float(self.rew)
        return self.obs, rew, False, self.t == self.length, info

    def render(self):
        return self.picture


@pytest.fixture(autouse=True)
def by_value():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def frozen(value):
    """A deep copy of what a caller got, to be compared with it later."""
    if isinstance(value, dict):
        return {name: frozen(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [frozen(part) for part in value]
    if isinstance(value, np.ndarray):
        return [frozen(part) for part in value] if value.dtype == object else value.copy()
    return value


def same(kept, then):
    if isinstance(then, dict):
        assert set(kept) == set(then)
        for name in then:
            same(kept[name], then[name])
    elif isinstance(then, list):
        assert len(kept) == len(then)
        for a, b in zip(kept, then, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(kept, then)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_vector_environment_hands_out_stays_as_it_is(kind, mode):
    env = make_vector_env(Rude, 2, kind, autoreset=mode, workers=1)
    kept = [env.reset(seed=10)]
    then = [frozen(kept[0])]
    actions = np.full((2, 2), 0.8, np.float32)
    finals = []
    for _ in range(8):
        kept.append((*env.step(actions), env.render()))
        then.append(frozen(kept[-1]))
        over = kept[-1][3]
        if "final_obs" in kept[-1][4]:
            finals.append(kept[-1][4])
        if mode is AutoresetMode.DISABLED and over.any():
            kept.append(env.reset(options={"reset_mask": over}))
            then.append(frozen(kept[-1]))
    env.call("reset")
    same(kept, then)
    np.testing.assert_array_equal(actions, np.full((2, 2), 0.8, np.float32))
    rising = [entry[0][0, 0] for entry in kept]
    assert rising[:3] == [1.0, 2.0, 3.0]
    # Each row tells of its own environment and step, though all share one dict.
    assert [kept[1][-2]["who"][i] for i in range(2)] == [(10, 2.0), (11, 2.0)]
    if mode is AutoresetMode.SAME_STEP:
        assert [final["final_obs"][0].tolist() for final in finals] == [[4.0, 4.0], [8.0, 8.0]]
        assert [final["final_info"]["array"][0].tolist() for final in finals] == [[4.0, 4.0], [8.0, 8.0]]
        assert [final["final_info"]["list"][0] for final in finals] == [[4.0], [8.0]]
        assert [final["final_info"]["deep"]["array"][1].tolist() for final in finals] == [[4.0, 4.0], [8.0, 8.0]]
        assert [final["array"][0].tolist() for final in finals] == [[5.0, 5.0], [9.0, 9.0]]
    env.close()


def test_repeated_actions_are_the_same_and_vector_rewards_add_up():
    env = ActionRepeat(Rude(length=9, shape=(2,)), 3)
    env.reset(seed=1)
    given = np.array([0.8, -0.4], np.float32)
    _, total, *_ = env.step(given)
    assert env.unwrapped.taken == [given.tolist()] * 3  # 0.8, not 0.4 and 0.2 after it
    assert total.tolist() == [2.0 + 3.0 + 4.0] * 2
    env.step(given)
    assert total.tolist() == [9.0, 9.0]


@pytest.mark.parametrize("wrap", [NormalizeObservation, lambda env: NormalizeObservation(ActionRepeat(env, 2))],
                         ids=["normal", "repeat"])
def test_what_wrappers_keep_and_hand_out_stays_as_it_is(wrap):
    env = wrap(Rude(length=20))
    kept = [env.reset(seed=1)[0]]
    then = [np.array(kept[0])]
    for _ in range(4):
        kept.append(env.step(np.zeros(2, np.float32))[0])
        then.append(np.array(kept[-1]))
    for a, b in zip(kept, then, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
    assert len({array.tobytes() for array in then}) == len(then) or wrap is NormalizeObservation


def test_clipped_and_rescaled_actions_are_the_callers_own():
    env = make_env(lambda: Rude(length=9))
    env.reset(seed=1)
    given = np.array([0.5, 2.0], np.float32)
    env.step(given)
    assert given.tolist() == [0.5, 2.0] and env.unwrapped.taken == [[0.5, 1.0]]

"""make_env: limits, bounds of actions, environments of other styles, layers, and the table of evaluation environments."""

import dataclasses
import sys
import types
import warnings

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor
from gymnasium.utils.env_checker import check_env

from parl_like.envs import make
from parl_like.envs.make import ActionBounds, Layers, OldStyle, TimeLimit, make_env, plan_eval_env


def wrappers_of(env):
    while isinstance(env, gym.Wrapper):
        yield type(env)
        env = env.env


class Push(gym.Env):
    """Remembers what it was given."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.given = action
        return np.zeros(1, np.float32), 0.0, False, False, {}


# ------------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("end, flags", [("terminated", (True, True)), ("truncated", (False, True)), (None, (False, True))])
def test_a_limit_truncates_and_leaves_a_true_end_on_it_an_end(end, flags):
    env = make_env(lambda: Corridor(3, end), time_limit=3)
    for _ in range(2):
        env.reset(seed=1)
        assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), flags]


def test_our_limit_takes_the_place_of_the_registered_one():
    env = make_env("CartPole-v1")
    assert list(wrappers_of(env)) == [TimeLimit] and env.max_steps == 500 == gym.spec("CartPole-v1").max_episode_steps
    assert make_env("CartPole-v1", time_limit=7).max_steps == 7
    assert not list(wrappers_of(make_env("CartPole-v1", time_limit=-1)))
    assert make_env(gym.spec("CartPole-v1")).max_steps == 500
    assert make_env("gymnasium.envs.classic_control:CartPole-v1").max_steps == 500


def test_the_limit_counts_steps_of_the_bare_environment():
    class Twice(gym.Wrapper):
        def step(self, action):
            self.env.step(action)
            return self.env.step(action)

    env = make_env(lambda: Corridor(100), time_limit=6, wrappers=[Twice])
    env.reset()
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_limits_that_are_none():
    for wrong in (0, -2, True):
        with pytest.raises(ValueError, match="time_limit is .*expected at least 1"):
            make_env(Corridor, time_limit=wrong)
    with pytest.raises(ValueError, match="max_steps is 0"):
        TimeLimit(Corridor(), 0)
    with pytest.raises(gym.error.ResetNeeded):
        TimeLimit(Corridor(), 1).step(0)


# ------------------------------------------------------------------------------------------------------------------ actions


def test_bounded_actions_are_rescaled_and_clipped_by_default():
    space = gym.spaces.Box(np.array([0, -2, -1, 0], np.float32), np.array([10, 2, 1, np.inf], np.float32))
    env = make_env(lambda: Push(space))
    assert env.action_space == gym.spaces.Box(np.array([-1, -1, -1, 0], np.float32), np.array([1, 1, 1, np.inf], np.float32))
    for outside, inside in [([-1, -1, -1, 0], [0, -2, -1, 0]), ([1, 1, 1, 9], [10, 2, 1, 9]), ([0, 0.5, 0.5, 1], [5, 1, 0.5, 1]),
                            ([3, -3, 9, -9], [10, -2, 1, 0])]:
        env.step(np.array(outside, np.float32))
        assert env.unwrapped.given.tolist() == inside and env.unwrapped.given.dtype == np.float32
        assert space.contains(env.unwrapped.given)


@pytest.mark.parametrize("clip, rescale, space, inside", [
    (True, False, (0, 10), 3.0), (False, True, (-1, 1), 20.0), (False, False, (0, 10), 3.0)])
def test_either_can_be_switched_off(clip, rescale, space, inside):
    box = gym.spaces.Box(0, 10, (1,), np.float32)
    env = make_env(lambda: Push(box), clip_actions=clip, rescale_actions=rescale)
    assert env.action_space == gym.spaces.Box(*space, (1,), np.float32)
    env.step(np.array([3.0], np.float32))
    assert env.unwrapped.given.tolist() == [inside]
    env.step(np.array([-30.0], np.float32))
    assert bool(env.unwrapped.given[0] == 0) is clip
    assert bool(list(wrappers_of(env))) is (clip or rescale)


def test_bounds_deep_in_an_action_space_and_what_is_left_alone():
    box = gym.spaces.Box(0, 10, (1,), np.float32)
    whole = gym.spaces.Box(0, 10, (1,), np.int64)
    free = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    space = gym.spaces.Dict({"a": gym.spaces.Tuple([gym.spaces.Discrete(3), box]), "whole": whole, "free": free})
    env = make_env(lambda: Push(space))
    env.step({"a": (2, np.array([1], np.float32)), "whole": np.array([40]), "free": np.array([99], np.float32)})
    given = env.unwrapped.given
    assert given["a"][0] == 2 and given["a"][1].tolist() == [10] and given["whole"].tolist() == [10] and given["free"].tolist() == [99]
    assert given["whole"].dtype == np.int64
    for space in (gym.spaces.Discrete(3), free, gym.spaces.Dict({"free": free}), gym.spaces.Tuple([gym.spaces.Discrete(2)])):
        assert not ActionBounds.changes(space) and make_env(lambda space=space: Push(space)).action_space is space


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_gymnasiums_own_checker_is_content(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(render|different from the unwrapped|minimum|maximum|symmetric)")
        check_env(make_env(name), skip_render_check=True)
        check_env(TimeLimit(gym.make(name, max_episode_steps=-1), 5), skip_render_check=True)
        check_env(ActionBounds(gym.make(name)), skip_render_check=True)


# --------------------------------------------------------------------------------------------------------------- other styles


class Box:
    """A space of the package gym, as far as one looks."""

    def __init__(self):
        self.low, self.high, self.shape, self.dtype = np.zeros(1, np.float32), np.full(1, 9, np.float32), (1,), np.dtype(np.float32)


class Discrete:
    n = 2


class Old:
    """An environment from before gymnasium: no seed in reset, four values from step."""

    metadata = {"render.modes": ["rgb_array"]}
    reward_range = (0, 1)

    def __init__(self, limit=False):
        self.observation_space, self.action_space, self.limit, self.seeds, self.closed = Box(), Discrete(), limit, [], 0

    def seed(self, seed=None):
        self.seeds.append(seed)

    def reset(self):
        self.t = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.t += 1
        return np.array([self.t], np.float32), 1.0, self.t == 3, {"TimeLimit.truncated": True} if self.limit and self.t == 3 else {}

    def render(self, mode="human"):
        return mode

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("limit", [False, True])
def test_old_environments_are_adapted(limit):
    env = make_env(Old, limit=limit)
    assert isinstance(env.unwrapped, OldStyle)
    assert env.observation_space == gym.spaces.Box(0, 9, (1,), np.float32) and env.action_space == gym.spaces.Discrete(2)
    assert env.metadata["render_modes"] == ["rgb_array"]
    obs, info = env.reset(seed=5)
    assert obs.tolist() == [0] and info == {} and env.unwrapped.old.seeds == [5]
    env.reset()
    assert env.unwrapped.old.seeds == [5]
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (not limit, limit)]
    assert env.get_wrapper_attr("reward_range") == (0, 1)
    env.close()
    assert env.unwrapped.old.closed == 1


def test_a_gymnasium_environment_whose_reset_is_old_is_adapted_and_one_of_today_is_not():
    class Half(Corridor):
        def reset(self):
            return super().reset()[0]

        def step(self, act):
            obs, rew, end, _, info = super().step(act)
            return obs, rew, end, info

    env = make_env(lambda: Half(2))
    assert env.reset(seed=3)[1] == {} and env.step(0)[2:4] == (False, False) and env.step(0)[2:4] == (True, False)
    assert type(make_env(Corridor)) is Corridor


def test_what_is_no_environment():
    with pytest.raises(TypeError, match="expected a gymnasium id, a factory or an environment"):
        make_env(3)
    with pytest.raises(TypeError, match="has no step, observation_space, action_space"):
        make_env(lambda: types.SimpleNamespace(reset=None))
    with pytest.raises(TypeError, match="come too late"):
        make_env(Corridor(), length=3)
    with pytest.raises(TypeError, match="make_vector_env"):
        make_env(lambda: gym.vector.SyncVectorEnv([Corridor]))
    with pytest.raises(ValueError, match="returned 3 values"):
        OldStyle(types.SimpleNamespace(reset=lambda: 0, step=lambda act: (0, 0, 0), observation_space=Box(), action_space=Discrete())).step(0)
    with pytest.raises(TypeError, match="expected Box, Discrete"):
        OldStyle(types.SimpleNamespace(reset=0, step=0, observation_space="Words", action_space=Discrete()))


def test_dm_env_goes_through_shimmy_or_says_what_is_missing(monkeypatch):
    class Dm:
        def action_spec(self):
            pass

        observation_spec = reset = step = action_spec

    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ImportError, match=r"pip install 'shimmy\[dm-control\]'"):
        make_env(Dm)
    fake = types.ModuleType("shimmy")
    fake.DmControlCompatibilityV0 = lambda env: Corridor(4)
    monkeypatch.setitem(sys.modules, "shimmy", fake)
    assert make_env(Dm).length == 4


# ------------------------------------------------------------------------------------------------------------------- layers


def test_wrappers_and_options_and_render_mode_arrive():
    env = make_env(Corridor, length=4, render_mode="rgb_array", wrappers=[lambda e: TimeLimit(e, 3), lambda e: TimeLimit(e, 2)])
    assert env.unwrapped.length == 4 and env.render_mode == "rgb_array" and (env.max_steps, env.env.max_steps) == (2, 3)
    ready = Corridor()
    assert make_env(ready) is ready
    assert make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"


def test_each_layer_can_be_replaced():
    said = []
    own = {
        "load": lambda what, **options: said.append(("load", what, options)) or (Corridor(), 9),
        "adapt": lambda env: said.append("adapt") or env,
        "limit": lambda env, steps: said.append(("limit", steps)) or env,
        "wrap": lambda env, clip, rescale, wrappers: said.append(("wrap", clip, rescale, wrappers)) or env,
    }
    make_env("mine", layers=Layers(**own), clip_actions=False, size=3)
    assert said == [("load", "mine", {"size": 3}), "adapt", ("limit", 9), ("wrap", False, True, ())]
    for name, layer in own.items():
        assert isinstance(make_env(Corridor, layers=Layers(**{name: layer})).unwrapped, Corridor)
    assert [field.name for field in dataclasses.fields(Layers)] == ["load", "adapt", "limit", "wrap", "host", "stack"]
    from parl_like.envs.vector import create_env
    stacked = []
    layers = Layers(host="thread", stack=lambda env_fn, n, kind, **options: stacked.append((n, kind, options, env_fn().length)))
    create_env(Corridor, 3, layers=layers, length=6, seed=1)
    assert stacked == [(3, "thread", {"inline": False, "seed": 1}, 6)]


@pytest.mark.parametrize("no_thread, evaluate, training, expected", [
    (True, True, "process", "process"), (True, True, "sync", "process"), (True, False, "process", None), (True, False, "sync", None),
    (False, True, "process", "thread"), (False, True, "sync", "thread"), (False, False, "process", "thread"), (False, False, "sync", None),
    (False, False, "thread", None)])
def test_the_table_of_evaluation_environments(no_thread, evaluate, training, expected):
    assert plan_eval_env(no_thread, evaluate, training) == expected


def test_the_table_knows_its_kinds_and_prefers_a_process():
    assert plan_eval_env() == "process"
    with pytest.raises(ValueError, match="expected 'sync', 'thread' or 'process'"):
        plan_eval_env(training_kind="fork")


def test_everything_named_is_there():
    assert all(hasattr(make, name) for name in make.__all__)

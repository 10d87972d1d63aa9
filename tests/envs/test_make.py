"""make_env: limits, bounds of actions, environments of other styles, layers, and what reaches the environment of a robot."""

import copy
import dataclasses
import pickle
import sys
import types
from functools import partial
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import Corridor

from parl_like import Agent, Algorithm, ComputationTask, Model, Robot, VectorAgent
from parl_like.envs.make import ActionBounds, DmEnv, Layers, OldStyle, TimeLimit, make_env
from parl_like.values.action_codec import Unclipped


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
    for wrong in (0, -2, True, "5", 2.5):
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


def test_single_values_half_bounds_whole_numbers_and_rounding():
    # One value only: nothing to scale by. Bounded on one side: clipped.
    space = gym.spaces.Box(np.array([2, 0, -1], np.float32), np.array([2, np.inf, 1], np.float32))
    env = make_env(lambda: Push(space))
    assert env.action_space == space
    env.step(np.array([5, -3, -3], np.float32))
    assert env.unwrapped.given.tolist() == [2, 0, -1]
    half = gym.spaces.Box(np.array([0], np.float32), np.array([np.inf], np.float32))
    env = make_env(lambda: Push(half))
    assert env.action_space == half
    env.step(np.array([-3], np.float32))
    assert env.unwrapped.given.tolist() == [0]
    whole = gym.spaces.Box(0, 10, (1,), np.int64)
    assert make_env(lambda: Push(whole)).action_space == whole
    low, high = np.random.default_rng(0).uniform([-9, 0.1], [-0.1, 9], (200, 2)).T
    for dtype, off in ((np.float32, 0), (np.float64, 1e-15)):
        space = gym.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
        env = make_env(lambda space=space: Push(space))
        for action in (low * 0 - 1, high * 0 + 1):
            env.step(action)
            np.testing.assert_allclose(env.unwrapped.given, space.low if action[0] < 0 else space.high, rtol=0, atol=9 * off)
            assert env.unwrapped.given in space
    same = gym.spaces.Box(-1, 1, (1,), np.float32)
    assert not list(wrappers_of(make_env(lambda: Push(same), clip_actions=False)))  # nothing to do at all


def test_bounds_deep_in_an_action_space_and_what_is_left_alone():
    box = gym.spaces.Box(0, 10, (1,), np.float32)
    whole = gym.spaces.Box(0, 10, (1,), np.int64)
    free = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    space = gym.spaces.Dict({"a": gym.spaces.Tuple([gym.spaces.Discrete(3), box]), "whole": whole, "free": free})
    env = make_env(lambda: Push(space))
    env.step({"a": (2, np.array([1], np.float32)), "whole": np.array([40]), "free": np.array([99], np.float32)})
    given = env.unwrapped.given
    assert given["a"][0] == 2 and given["a"][1].tolist() == [10] and given["whole"].tolist() == [10]
    assert given["free"].tolist() == [99]
    assert given["whole"].dtype == np.int64
    for space in (gym.spaces.Discrete(3), free, gym.spaces.Dict({"free": free}), gym.spaces.Tuple([gym.spaces.Discrete(2)])):
        assert not ActionBounds.changes(space) and make_env(lambda space=space: Push(space)).action_space is space


# --------------------------------------------------------------------------------------------------------------- other styles


class Box:
    """A space of the package gym, as far as one looks."""

    def __init__(self):
        self.low, self.high, self.shape, self.dtype = (
            np.zeros(1, np.float32),
            np.full(1, 9, np.float32),
            (1,),
            np.dtype(np.float32),
        )


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
        return np.array([self.t],
                        np.float32), 1.0, self.t == 3, {"TimeLimit.truncated": True} if self.limit and self.t == 3 else {}

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
    assert copy.deepcopy(env).observation_space == env.observation_space
    assert pickle.loads(pickle.dumps(env)).action_space == env.action_space
    env.close()
    assert env.unwrapped.old.closed == 1


def test_wrappers_of_old_environments_take_any_keyword_and_pass_it_on():
    class Shell:
        """As gym.Wrapper had it up to 0.25."""

        def __init__(self, env):
            self.env, self.unwrapped = env, env
            self.observation_space, self.action_space = env.observation_space, env.action_space

        def reset(self, **kwargs):
            return self.env.reset(**kwargs)

        def render(self, mode="human", **kwargs):
            return self.env.render(mode, **kwargs)

        def __getattr__(self, name):
            return getattr(self.env, name)

    env = make_env(lambda: Shell(Old()))
    assert env.reset(seed=5, options={"a": 1})[0].tolist() == [0] and env.unwrapped.old.seeds == [5]
    env.unwrapped.render_mode = "rgb_array"
    assert env.render() == "rgb_array"

    class Knows(Old):
        def reset(self, seed=None, options=None):
            self.seeds.append((seed, options))
            return super().reset()

        def step(self, action):  # gym 0.26
            obs, reward, done, info = super().step(action)
            return obs, reward, 0, int(done), info

        def render(self):
            return "as it was made"

    env = make_env(lambda: Shell(Knows()))
    env.reset(seed=6, options={"b": 2})
    assert env.unwrapped.old.seeds == [(6, {"b": 2})]
    flags = [env.step(0)[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)] and type(flags[0][0]) is type(flags[0][1]) is bool
    env = make_env(Knows)
    env.unwrapped.render_mode = "rgb_array"
    assert env.render() == "as it was made"


def test_spaces_of_the_package_gym():
    def old(kind, **more):
        return type(kind, (types.SimpleNamespace,), {})(**more)

    box = {"low": np.zeros(2), "high": np.ones(2), "shape": (2,), "dtype": np.dtype(np.float64)}
    whole = old("Dict",
                spaces={"a": old("Tuple", spaces=[old("Discrete", n=3, start=2), old("MultiDiscrete", nvec=np.array([2, 3]))]),
                                "b": old("MultiBinary", n=4), "c": old("Box", **box), "d": gym.spaces.Text(3)})
    env = OldStyle(types.SimpleNamespace(reset=lambda: 0, step=0, observation_space=whole, action_space=old("Discrete", n=2)))
    assert env.action_space == gym.spaces.Discrete(2) and env.observation_space == gym.spaces.Dict({
        "a": gym.spaces.Tuple([gym.spaces.Discrete(3, start=2), gym.spaces.MultiDiscrete([2, 3])]),
        "b": gym.spaces.MultiBinary(4),
        "c": gym.spaces.Box(0, 1, (2,), np.float64), "d": gym.spaces.Text(3)})


def test_an_observation_that_looks_like_an_observation_with_its_info():
    class Two(Old):
        def __init__(self, info):
            super().__init__()
            self.observation_space = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Dict({"a": gym.spaces.Discrete(2)})])
            self.info = info

        def reset(self):
            whole = (1, {"a": 1})
            return (whole, {"b": 2}) if self.info else whole

    assert make_env(Two, info=False).reset() == ((1, {"a": 1}), {})
    assert make_env(Two, info=True).reset() == ((1, {"a": 1}), {"b": 2})


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
        OldStyle(types.SimpleNamespace(reset=lambda: 0, step=lambda act: (0, 0, 0), observation_space=Box(),
                                       action_space=Discrete())).step(0)
    with pytest.raises(TypeError, match="expected Box, Discrete"):
        OldStyle(types.SimpleNamespace(reset=0, step=0, observation_space="Words", action_space=Discrete()))


class Spec(types.SimpleNamespace):
    """One of dm_env's, as far as one looks: shape, dtype, and perhaps minimum and maximum, or num_values."""


def spec(dtype, shape=(), **more):
    return Spec(shape=shape, dtype=np.dtype(dtype), **more)


class Dm:
    """Three steps; the last one has this discount. Its own time steps, as dm_env's are."""

    def __init__(self, discount=0.0):
        self.discount, self.log = discount, []

    def observation_spec(self):
        return {"at": spec(np.float32, (2,), minimum=-1, maximum=np.array([1, 2])),
                "more": (spec(bool), spec(np.int8, (1,)), spec(float, (1,)))}

    def action_spec(self):
        return spec(np.int32, num_values=3)

    def moment(self, reward, discount):
        obs = {"at": np.zeros(2, np.float32), "more": [True, np.ones(1, np.int8), [0.5]]}
        return types.SimpleNamespace(observation=obs, reward=reward, discount=discount, last=lambda: self.t == 3)

    def reset(self):
        self.t = 0
        self.log.append("reset")
        return self.moment(None, None)

    def step(self, action):
        self.t += 1
        self.log.append(action)
        return self.moment(self.t, self.discount if self.t == 3 else 0.0 if self.t == 2 else 1.0)

    def close(self):
        self.log.append("close")


@pytest.mark.parametrize("discount, ends", [(0.0, (True, False)), (1.0, (False, True)), (0.9, (False, True))])
def test_dm_envs_are_adapted(discount, ends):
    env = make_env(Dm, discount=discount)
    assert type(env) is DmEnv and env.action_space == gym.spaces.Discrete(3)
    whole = gym.spaces.Box(-128, 127, (1,), np.int8)
    more = gym.spaces.Tuple([gym.spaces.Box(0, 1, (), np.uint8), whole, gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)])
    low, high = np.array([-1, -1], np.float32), np.array([1, 2], np.float32)
    assert env.observation_space == gym.spaces.Dict({"at": gym.spaces.Box(low, high), "more": more})
    with pytest.raises(gym.error.ResetNeeded, match="DmEnv"):
        env.step(0)
    for _ in range(2):
        obs, info = env.reset(seed=1)
        assert obs in env.observation_space and obs["more"][0].dtype == np.uint8 and obs["more"][2].tolist() == [0.5]
        assert info == {}
        assert [env.step(a)[1:4] for a in range(2)] == [(1.0, False, False), (2.0, False, False)]
        obs, *rest = env.step(2)
        assert obs in env.observation_space and rest == [3.0, *ends, {"discount": discount}] and type(rest[0]) is float
        with pytest.raises(gym.error.ResetNeeded,
                           match="DmEnv"):  # the environment itself would begin an episode and lose the action
            env.step(0)
    env.close()
    assert env.dm.log == ["reset", 0, 1, 2] * 2 + ["close"]


def test_a_seed_reaches_a_dm_env_that_can_be_seeded_and_other_specs_are_refused():
    class Seeded(Dm):
        def seed(self, seed):
            self.log.append(("seed", seed))

    env = make_env(Seeded)
    env.reset(seed=4)
    env.reset()
    assert env.unwrapped.dm.log == [("seed", 4), "reset", "reset"]
    for wrong in (Spec(shape=(), dtype=object), Spec()):
        with pytest.raises(TypeError, match="DmEnv: the spec .*expected numbers"):
            make_env(type("Odd", (Dm,), {"action_spec": lambda self, wrong=wrong: wrong}))


def test_a_real_dm_env_is_adapted():
    dm_env = pytest.importorskip("dm_env")

    class Walk(dm_env.Environment):
        def reset(self):
            self.t = 0
            return dm_env.restart(np.zeros(1))

        def step(self, action):
            self.t += int(action)
            make = {2: dm_env.termination, 3: dm_env.truncation}.get(self.t, dm_env.transition)
            return make(1.0, np.array([self.t / 3]))

        def observation_spec(self):
            return dm_env.specs.BoundedArray((1,), float, 0, 1)

        def action_spec(self):
            return dm_env.specs.DiscreteArray(4)

    env = make_env(Walk)
    assert env.reset()[0] in env.observation_space and env.action_space == gym.spaces.Discrete(4)
    assert env.step(1)[1:4] == (1.0, False, False) and env.step(1)[2:4] == (True, False)
    env.reset()
    assert env.step(3)[2:4] == (False, True)
    with pytest.raises(TypeError, match="expected numbers"):
        make_env(type("Text", (Walk,), {"action_spec": lambda self: dm_env.specs.StringArray(())}))


def test_dm_control_goes_through_shimmy_or_says_what_is_missing(monkeypatch):
    class Control(Dm):
        physics = None

    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ImportError, match=r"pip install 'parl_like\[dm-control\]'"):
        make_env(Control)
    fake = types.ModuleType("shimmy")
    fake.DmControlCompatibilityV0 = lambda env: Corridor(4)
    monkeypatch.setitem(sys.modules, "shimmy", fake)
    assert make_env(Control).length == 4


def test_a_real_task_of_dm_control_is_adapted():
    pytest.importorskip("shimmy")
    suite = pytest.importorskip("dm_control.suite")
    env = make_env(lambda: suite.load("cartpole", "balance"), time_limit=20)
    first, _ = env.reset(seed=1)
    assert first in env.observation_space and env.action_space == gym.spaces.Box(-1, 1, (1,), np.float64)
    assert [env.step(np.zeros(1))[2:4] for _ in range(20)] == [(False, False)] * 19 + [(False, True)]
    np.testing.assert_equal(env.reset(seed=1)[0], first)
    assert not np.array_equal(env.reset(seed=2)[0]["position"], first["position"])


# ------------------------------------------------------------------------------------------------------------------- layers


def test_wrappers_and_options_and_render_mode_arrive():
    env = make_env(Corridor, length=4, render_mode="rgb_array", wrappers=[lambda e: TimeLimit(e, 3), lambda e: TimeLimit(e, 2)])
    assert env.unwrapped.length == 4 and env.render_mode == "rgb_array" and (env.max_steps, env.env.max_steps) == (2, 3)
    ready = Corridor()
    assert make_env(ready) is ready
    assert make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"


def anything(**options):
    return Corridor()


@pytest.mark.parametrize("what", ["Pendulum-v1", gym.spec("Pendulum-v1"), Corridor, lambda: Corridor(), anything],
                         ids=["id", "spec", "class", "lambda", "function"])
@pytest.mark.parametrize("wrong, right", [
    ("clip_action", "clip_actions"), ("rescale_action", "rescale_actions"), ("timelimit", "time_limit"), ("wrapper", "wrappers"),
    ("layer", "layers"), ("rendermode", "render_mode")])
def test_an_option_that_is_misspelt_is_named_with_the_right_one(what, wrong, right):
    with pytest.raises(TypeError, match=f"make_env: no option '{wrong}'; did you mean '{right}'"):
        make_env(what, **{wrong: 3})


def test_an_option_that_nobody_knows_is_named():
    for what in ("Pendulum-v1", Corridor, lambda: Corridor()):
        with pytest.raises(TypeError, match=r"make_env: .* takes no option 'colour'; of ours there are 'time_limit', "
                                            r"'clip_actions', ") as told:
            make_env(what, colour=3)
        assert "unexpected keyword argument 'colour'" in str(told.value.__cause__)
    for what in ("Pendulum-v1", Corridor):
        with pytest.raises(TypeError, match="takes no option 'max_episode_steps'; did you mean 'time_limit'"):
            make_env(what, max_episode_steps=3)
    with pytest.raises(TypeError, match="takes no option 'disable_env_checker'"):
        make_env("Pendulum-v1", disable_env_checker=True)

    def broken(length):
        return Corridor(lenght=length)

    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'lenght'"):  # not what the caller gave
        make_env(broken, length=3)
    assert make_env(anything, colour=3).length == 5
    assert make_env(lambda wrapper: Corridor(wrapper), wrapper=3).length == 3  # the constructor's own


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


# ------------------------------------------------------------------------------------------------------- unclipped, in a robot


class Far(Algorithm):
    """Wants 3 where the bounds are −1 and 1."""

    def predict(self, inputs):
        return {"act": torch.full((len(inputs.obs), 1), 3.0)}


class Noted(Push):
    seen: ClassVar[list] = []

    def step(self, action):
        self.seen.append(float(np.asarray(action)[0]))
        return super().step(action)


@pytest.mark.parametrize(("clip", "rescale", "given"), [(True, True, 10.0), (False, True, 20.0), (True, False, 10.0),
                                                        (False, False, 20.0)])
@pytest.mark.parametrize("vector", [False, True])
def test_actions_reach_the_environment_of_a_robot_as_clip_actions_says(clip, rescale, given, vector):
    """A Box from 0 to 10: 3 in the policy's units is 5 + 3 · 5 = 20; whatever rescales it, nobody clips it."""
    make = partial(make_env, lambda: Noted(gym.spaces.Box(0, 10, (1,), np.float32)), clip_actions=clip, rescale_actions=rescale)
    env = make()
    Noted.seen.clear()
    task = ComputationTask(Far(Model(env.observation_space, env.action_space)), train=False)
    with Robot(make, tasks={"RL": task}, agent=partial(VectorAgent, 2) if vector else Agent) as robot:
        robot.run(4)
    assert set(Noted.seen) == {given}


def test_an_unclipped_space_travels_and_is_nested():
    box = gym.spaces.Box(0, 10, (1,), np.float32)
    space = make_env(lambda: Push(gym.spaces.Dict(a=box, b=gym.spaces.Discrete(2))), clip_actions=False,
                     rescale_actions=False).action_space
    again = pickle.loads(pickle.dumps(space["a"]))
    assert isinstance(again, Unclipped) and again == box == space["a"] and again.contains(np.full(1, 99, np.float32))
    assert not again.contains(np.zeros(2, np.float32)) and box.low == 0

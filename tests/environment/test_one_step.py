"""A CartPole of an agent takes compiled steps: beside one that steps by itself nothing is different. It steps by itself as soon
as anything is not gymnasium's."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import cartpole

from parl_like.envs.vector._steps import CartPoleStep
from parl_like.envs.vector.compiled import one_step

ID = "CartPole-v1"
pytestmark = pytest.mark.filterwarnings("ignore:.*You are calling 'step")


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, np.random.Generator):
        assert a.bit_generator.state == b.bit_generator.state
    else:
        assert a == b or a is b


def same_attributes(env, other):
    while True:
        assert vars(env).keys() == vars(other).keys()
        for name, value in vars(env).items():
            if name not in ("env", "action_space", "observation_space", "spec"):
                same(value, vars(other)[name])
        if not isinstance(env, gym.Wrapper):
            return
        env, other = env.env, other.env


def pair(*arguments, **options):
    env, other = (gym.make(ID, *arguments, disable_env_checker=True, **options) for _ in range(2))
    step = one_step(env)
    assert isinstance(step, CartPoleStep) and not step.changed()
    return env, step, other


@pytest.mark.parametrize("options", [{}, {"sutton_barto_reward": True}, {"max_episode_steps": 7}], ids=str)
def test_steps_states_counts_and_draws_are_those_of_gymnasium(options):
    env, step, other = pair(**options)
    rng = np.random.default_rng(0)
    for episode in range(30):
        given = {"seed": episode} if episode % 3 == 0 else {}
        given |= {"options": {"low": -0.1, "high": 0.1}} if episode % 4 == 1 else {}
        same(env.reset(**given), other.reset(**given))
        over = False
        while not over:
            act = int(rng.integers(2)) if episode else 0
            if rng.random() < 0.1:
                act = np.int64(act)  # it steps by itself
            ours, theirs = step(act), other.step(act)
            same(ours, theirs)
            same_attributes(env, other)
            over = ours[2] or ours[3]


def test_the_limit_of_a_long_episode_is_told():
    env, step, other = pair(max_episode_steps=40)
    env.reset(seed=1)
    other.reset(seed=1)
    ends = []
    for _ in range(40):
        act = int(env.unwrapped.state[2] + env.unwrapped.state[3] > 0)
        same(ours := step(act), other.step(act))
        ends.append(ours[2:4])
    assert ends == [(False, False)] * 39 + [(False, True)]


def gravity(env):
    env.unwrapped.gravity = 5.0


def semi_implicit(env):
    env.unwrapped.kinematics_integrator = "semi-implicit"


def own_step(env):
    bare, before = env.unwrapped, type(env.unwrapped).step
    bare.step = lambda act: before(bare, 1 - act)


def own_class(env):
    env.unwrapped.__class__ = type("Mine", (cartpole.CartPoleEnv,), {"step": lambda self, act: super(
        type(self), self).step(1 - act)})


def state(env):
    env.unwrapped.state = (0.1, 0.2, 0.01, 0.3)


def single_state(env):
    env.unwrapped.state = np.array([0.1, 0.2, 0.01, 0.3], np.float32)


def beyond(env):
    env.unwrapped.steps_beyond_terminated = 1


def limit(env):
    env._max_episode_steps = 6


def elapsed(env):
    env._elapsed_steps = 498


def other_dict(env):
    bare = env.unwrapped
    bare.__dict__ = {**vars(bare), "tau": 0.05}


def other_inside(env):
    env.env = gym.wrappers.TransformReward(env.env, lambda reward: 2.0 * reward)


def space(env):
    env.unwrapped.action_space = gym.spaces.Discrete(2, start=1)


def reset_in_between(env):
    env.reset(seed=9)


@pytest.mark.parametrize("change", [gravity, semi_implicit, own_step, own_class, state, single_state, beyond, limit, elapsed,
                                    other_dict, other_inside, space, reset_in_between], ids=lambda f: f.__name__)
def test_what_is_changed_between_two_steps_counts(change):
    env, step, other = pair()
    for one in (env, other):
        one.reset(seed=3)
    for t in range(12):
        if t == 4:
            change(env)
            change(other)
        same(step(1), other.step(1))
        assert env.unwrapped.state is not None
        same(env.unwrapped.state, other.unwrapped.state)
        assert env._elapsed_steps == other._elapsed_steps


def test_changed_classes_are_followed(monkeypatch):
    env, step, _ = pair()
    env.reset(seed=3)
    before = cartpole.CartPoleEnv.step
    step(1)
    monkeypatch.setattr(cartpole.CartPoleEnv, "step", lambda self, act: (*before(self, act)[:1], 7.0, False, False, {}))
    assert step(1)[1] == 7.0
    assert not isinstance(one_step(gym.make(ID)), CartPoleStep)  # it does not do what the loop does
    monkeypatch.undo()
    assert step(1)[1] == 1.0
    env, step, _ = pair()
    env.reset(seed=3)
    monkeypatch.setattr(gym.wrappers.OrderEnforcing, "step", lambda self, act: (0, 1.0, False, False, {"mine": True}))
    assert step(1)[-1] == {"mine": True}


def test_actions_that_do_not_exist_are_refused_as_ever():
    env, step, _ = pair()
    env.reset(seed=3)
    for act in (2, -1, 1.0, None, True, 10**30):
        try:
            expected = gym.make(ID).unwrapped.action_space.contains(act)
        except Exception:
            expected = False
        if not expected:
            with pytest.raises(AssertionError, match="invalid"):
                step(act)
    same(env.unwrapped.steps_beyond_terminated, None)


def test_steps_before_a_reset_are_refused_as_ever():
    env, step, _ = pair()
    with pytest.raises(gym.error.ResetNeeded):
        step(0)


def test_other_environments_step_by_themselves():
    class Mine(cartpole.CartPoleEnv):
        pass

    for env in (Mine(), gym.make(ID, render_mode="rgb_array"), gym.make("Acrobot-v1"), gym.make("CartPole-v1").unwrapped,
                gym.wrappers.TransformReward(gym.make(ID), lambda reward: reward)):
        step = one_step(env)
        assert isinstance(step, CartPoleStep) is (type(env) is cartpole.CartPoleEnv and env.render_mode is None)


def test_copies_are_gymnasium_s_own():
    env, step, _ = pair()
    env.reset(seed=3)
    step(1)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env.unwrapped))):
        same(copied.unwrapped.state, env.unwrapped.state)
        assert type(copied) in (type(env), type(env.unwrapped))
        same(copied.step(1)[0], env.unwrapped.__class__.step(copy.copy(env.unwrapped), 1)[0])

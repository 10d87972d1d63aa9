"""Compiled steps end for good where somebody else may change what they stand on, and take nothing that gymnasium would compute
otherwise."""

import warnings
import weakref

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from test_compiled_steps import actions, both_step, is_compiled, pair, same

from parl_like.environment.factory import note_of
from parl_like.environment.together import EnvsTogether
from parl_like.envs.make import make_env
from parl_like.envs.vector import make_vector_env
from parl_like.envs.vector.make import together

TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"


def led(id, steps=6, **options):
    """Both, of which the compiled one leads."""
    envs = pair(id, **options)
    same(*(env.reset(seed=5) for env in envs))
    for act in actions(envs[1], steps):
        both_step(envs, act)
    assert envs[0].compiled.leads
    return envs


def play(envs, steps=40, seed=2):
    for act in actions(envs[1], steps, seed):
        both_step(envs, act)


def chain(states, acts):
    return {s: {a: [(1.0, (s + 1) % states, float(s), False)] for a in range(acts)} for s in range(states)}


def frozen(table):
    return tuple(tuple(tuple(outcomes) for outcomes in pairs.values()) for pairs in table.values())


@pytest.mark.parametrize("id, states, acts", [("FrozenLake-v1", 16, 4), ("CliffWalking-v1", 48, 4), (TAXI, 500, 6)])
def test_tables_that_are_set_are_taken(id, states, acts):
    at = np.eye(states)[3]
    for name, value in (("P", chain(states, acts)), ("P", [chain(states, acts)] * 3), ("P", [frozen(chain(states, acts))] * 3),
                        ("initial_state_distrib", at), ("initial_state_distrib", [tuple(at)] * 3)):
        envs = led(id, time_limit=20)
        for env in envs:
            env.set_attr(name, value)
        play(envs)
        assert not is_compiled(envs[0])


@pytest.mark.parametrize("ask", [
    lambda env: env.get_attr("initial_state_distrib"), lambda env: env.call("get_wrapper_attr", "initial_state_distrib"),
    lambda env: [bare.initial_state_distrib for bare in env.get_attr("unwrapped")]])
def test_arrays_that_the_caller_got_may_be_changed_later(ask):
    envs = led(TAXI, time_limit=20)
    given = [ask(env) for env in envs]
    play(envs, 10)
    for arrays in given:
        for array in arrays:
            array[:] = np.eye(500)[7]
    play(envs)


def test_an_object_that_the_caller_gave_may_be_changed_later():
    tables = [chain(16, 4) for _ in range(3)]
    envs = led("FrozenLake-v1", time_limit=20)
    for env in envs:
        env.call("set_wrapper_attr", "P", tables[0])
    play(envs, 10)
    for s in range(16):
        tables[0][s][1] = [(1.0, 0, 7.0, False)]
    play(envs)
    torques = [-1.0, 0.0, 1.0]
    envs = led("Acrobot-v1")
    for env in envs:
        env.set_attr("AVAIL_TORQUE", [torques] * 3)
    play(envs, 10)
    torques[0] = -2.0
    play(envs)


def test_numbers_and_states_leave_compiled_steps_as_they_are():
    envs = led("Acrobot-v1")
    for env in envs:
        env.set_attr("dt", 0.1)
        env.set_attr("state", [np.full(4, 0.1)] * 3)
        assert env.get_attr("dt") == (0.1,) * 3 and env.get_attr("book_or_nips") == ("book",) * 3
        assert env.call("has_wrapper_attr", "state") == (True,) * 3
        for state, generator in zip(env.get_attr("state"), env.get_attr("np_random"), strict=True):
            state[0] = generator.random()
    play(envs)
    assert is_compiled(envs[0])


def keep(part):
    """A factory of each kind that keeps a part of what it makes, and the parts."""
    kept = []

    def make():
        env = gym.make("FrozenLake-v1", disable_env_checker=True)
        kept.append(part(env))
        return env

    return make, kept


@pytest.mark.parametrize("part", [
    lambda env: env.unwrapped.P, lambda env: env.unwrapped.P[2], lambda env: env.unwrapped.P[14][3],
    lambda env: env.unwrapped.initial_state_distrib, lambda env: env.unwrapped.initial_state_distrib[:],
    lambda env: vars(env), lambda env: vars(env.unwrapped), lambda env: env.unwrapped.__dict__, lambda env: env.unwrapped.step,
    lambda env: weakref.ref(env.unwrapped), lambda env: weakref.proxy(env)])
def test_factories_that_keep_a_part_get_ordinary_steps(part):
    make, kept = keep(part)
    env = make_vector_env(make, 2)
    assert not is_compiled(env) and len(kept) == 2
    env.close()


@pytest.mark.parametrize("part", [lambda env: env.unwrapped.nrow, lambda env: env.spec.id, lambda env: type(env)])
def test_factories_that_keep_numbers_and_names_get_compiled_steps(part):
    make, kept = keep(part)
    env = make_vector_env(make, 2)
    assert is_compiled(env) and len(kept) == 2
    env.close()


STATES = {"CartPole-v1": np.full(4, 0.013), "Pendulum-v1": np.array([0.1, 0.7]), "MountainCar-v0": np.array([-0.41, 0.013]),
          "MountainCarContinuous-v0": np.array([-0.41, 0.013]), "Acrobot-v1": np.full(4, 0.11)}


@pytest.mark.parametrize("how", [
    np.float32, np.float64, np.float16, np.longdouble, ">f8", "mixed", "tuple", "int"])
@pytest.mark.parametrize("id", STATES)
def test_states_that_are_set_keep_their_type(id, how):
    value = STATES[id]
    state = {"mixed": lambda: (*map(float, value[:-1]), np.float32(value[-1])), "tuple": lambda: tuple(map(float, value)),
             "int": lambda: np.zeros(len(value), np.int64)}.get(how, lambda: value.astype(how))()
    for begun in (False, True):
        envs = led(id) if begun else pair(id)
        for env in envs:
            if not begun:
                env.reset(seed=5)
            env.set_attr("state", [state] * 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            play(envs, 12)
        same(*(env.get_attr("state") for env in envs))


@pytest.mark.parametrize("reset", [False, True])
def test_classes_that_are_changed_while_steps_are_compiled(monkeypatch, reset):
    envs = led("Acrobot-v1", time_limit=9)
    monkeypatch.setattr(AcrobotEnv, "LINK_LENGTH_1", 1.5)
    if reset:
        same(*(env.reset() for env in envs))
    play(envs)
    envs = led("CartPole-v1")
    step, begin = CartPoleEnv.step, CartPoleEnv.reset

    def other_step(self, action):
        obs, _, *rest = step(self, action)
        return obs, 3.0, *rest

    def other_reset(self, **options):
        obs, info = begin(self, **options)
        return obs / 2, info

    monkeypatch.setattr(CartPoleEnv, "reset", other_reset)
    monkeypatch.setattr(CartPoleEnv, "step", other_step)
    if reset:
        same(*(env.reset() for env in envs))
    play(envs)
    assert not is_compiled(envs[0])


def test_wrappers_and_bases_that_are_changed_while_steps_are_compiled(monkeypatch):
    limit = type(make_env("CartPole-v1", time_limit=5))
    step = limit.step

    def other(self, action):
        obs, rew, *rest = step(self, action)
        return obs, rew + 1, *rest

    envs = led("CartPole-v1", time_limit=5)
    with monkeypatch.context() as patch:
        patch.setattr(limit, "step", other)
        play(envs)
        assert not is_compiled(envs[0])
        env = make_vector_env(lambda: make_env("CartPole-v1", time_limit=5), 2)
        assert not is_compiled(env)
        env.close()
    envs = led(TAXI, time_limit=5)
    monkeypatch.setattr(gym.Env, "np_random", property(lambda self: np.random.default_rng(3)))
    play(envs)
    assert not is_compiled(envs[0])


@pytest.mark.parametrize("id", ["FrozenLake-v1", "CliffWalking-v1", TAXI])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_numbers_in_infos_are_of_the_same_type(id, mode):
    envs = led(id, 2, time_limit=3, mode=mode)
    for act in actions(envs[1], 12):
        out = both_step(envs, act)
        theirs = envs[1].step(act) if mode is not AutoresetMode.DISABLED else out
        if theirs is not out:
            same(envs[0].step(act), theirs)
    mask = np.array([True, False, True])
    ours, theirs = (env.reset(options={"reset_mask": mask})[1] for env in envs)
    assert ours["prob"].dtype == theirs["prob"].dtype == (np.float64 if id == TAXI else np.int64)


# ------------------------------------------------------------------------------------------- environments that are there already


def made(*ids, **options):
    return [gym.make(id, disable_env_checker=True, **options) for id in ids]


def test_environments_that_are_not_taken_stay_as_they_are(monkeypatch):
    closed = []
    monkeypatch.setattr(CartPoleEnv, "close", lambda self: closed.append(self))
    envs = made("CartPole-v1", "CartPole-v1")
    same_envs = [*envs]
    assert together(envs) is None and all(a is b for a, b in zip(envs, same_envs, strict=True)) and not closed
    del same_envs
    for ids in (("CartPole-v1", "Pendulum-v1"), ("FrozenLake-v1", "FrozenLake8x8-v1"), ("CartPole-v1", "Acrobot-v1")):
        envs = made(*ids)
        before = [id(env) for env in envs]
        assert together(envs) is None and [id(env) for env in envs] == before and not closed
    odd = made("CartPole-v1", "CartPole-v1")
    for env in odd:
        env.unwrapped.observation_space = gym.spaces.Sequence(gym.spaces.Discrete(2))
    assert together(odd) is None and len(odd) == 2 and not closed
    taken = made("CartPole-v1", "CartPole-v1")
    both = together(taken)
    assert is_compiled(both) and not taken
    both.close()
    assert len(closed) == 2


def test_both_forms_of_environments_together_have_the_same_attributes():
    one, other = together(made("CartPole-v1", "CartPole-v1")), EnvsTogether(made("CartPole-v1", "CartPole-v1"))
    public = {name for name in {*dir(other), *vars(other)} if not name.startswith("_")}
    assert public <= {*dir(one)}
    one.reset(seed=1)
    one.step(np.zeros(2, np.int64))
    assert note_of(one) == one.note == ""
    assert is_compiled(one) and one.observation_mode == other.observation_mode == "same" and one.copy is other.copy is True
    envs = one.envs
    assert not is_compiled(one) and [type(env) for env in envs] == [type(env) for env in other.envs]
    assert [make() for make in one.env_fns] == envs and [make() for make in other.env_fns] == other.envs
    envs[1] = gym.wrappers.TransformReward(envs[1], lambda reward: 2 * reward)
    assert one.step(np.zeros(2, np.int64))[1].tolist() == [1.0, 2.0]
    one.envs = [gym.wrappers.TransformReward(env, lambda reward: 3 * reward) for env in one.envs]
    assert one.step(np.zeros(2, np.int64))[1].tolist() == [3.0, 6.0]
    one.envs[0].note = "It has a note."
    assert note_of(one) == one.note == "It has a note."
    assert not isinstance(one, SyncVectorEnv) and one.envs is one.hosts[0].group.envs
    one.close()
    assert one.envs == [] and one.note == ""

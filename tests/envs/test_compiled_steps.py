"""Compiled steps of gymnasium's classic control and toy text: equal to gymnasium's to the last bit, and left where they are not
for an environment."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import steps_twin
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode

from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.make import make_env
from parl_like.envs.vector import make_vector_env
from parl_like.envs.vector._steps import COLUMNS, Kind, Mode, Steps, Table
from parl_like.envs.vector.compiled import CLASSES, agrees, constants_of, parts_of, table_of
from parl_like.envs.vector.group import EnvFailed

CONTROL = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
TABLES = ["FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Taxi-v4"]
IDS = [id for id in CONTROL + TABLES if id in gym.registry]
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
N = 3


def pair(id, n=N, time_limit=None, mode=AutoresetMode.SAME_STEP, **options):
    """The compiled environments and the ordinary ones."""
    make = lambda: make_env(id, time_limit=time_limit, **options)  # noqa: E731
    both = make_vector_env(make, n, autoreset=mode), make_vector_env(make, n, autoreset=mode, inline=True)
    assert is_compiled(both[0]) and not is_compiled(both[1])
    return both


def is_compiled(env):
    return env.compiled is not None


def same(a, b):
    """Equal to the last bit, types and structure included; but where a car stands at the wall, its 0 may be an integer."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            same(a[name], b[name])
    elif isinstance(a, (tuple, list)) or isinstance(a, np.ndarray) and a.dtype == object:
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif a is None or b is None:
        assert a is b
    else:
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype or a.dtype.kind == "f" and b.dtype.kind == "i", (a.dtype, b.dtype)
        np.testing.assert_array_equal(a, b)


def actions(env, steps, seed=1):
    """Random ones, of which each is held for some steps, so that cars and poles get somewhere."""
    env.action_space.seed(seed)
    held = [env.action_space.sample() for _ in range(1 + steps // 3)]
    return [held[k // 3] for k in range(steps)]


def both_step(envs, action):
    outs = [env.step(action) for env in envs]
    same(*outs)
    over = outs[0][2] | outs[0][3]
    if envs[0].autoreset_mode is AutoresetMode.DISABLED and over.any():
        same(*(env.reset(options={"reset_mask": over}) for env in envs))
    return outs[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", IDS)
def test_every_step_is_gymnasiums(id, mode):
    envs = pair(id, mode=mode, time_limit=40)
    same(*(env.reset(seed=11) for env in envs))
    ended = sum(int((out[2] | out[3]).sum()) for out in (both_step(envs, act) for act in actions(envs[1], 130)))
    assert ended >= N and is_compiled(envs[0]) and envs[0].compiled.leads
    same(clone_state(envs[0]), clone_state(envs[1]))
    for env in envs:
        env.close()


@pytest.mark.parametrize("id", ["CartPole-v1", "Acrobot-v1", "Taxi-v4"])
def test_n_environments_of_gymnasium_seeded_one_after_the_other(id):
    env, singles = make_vector_env(id, N), [gym.make(id) for _ in range(N)]
    obs, _ = env.reset(seed=[5, 9, 2])
    same(obs, np.stack([single.reset(seed=seed)[0] for single, seed in zip(singles, [5, 9, 2], strict=True)]))
    for act in actions(env, 60):
        obs, rew, terminated, truncated, info = env.step(act)
        for i, single in enumerate(singles):
            seen, reward, end, cut, _ = single.step(act[i])
            assert (rew[i], terminated[i], truncated[i]) == (reward, end, cut)
            if end or cut:
                same(info["final_obs"][i], seen)
                seen, _ = single.reset()
            same(obs[i], np.asarray(seen))
    env.close()


def test_a_long_run_of_powers():
    """`pow(x, 2)` is not always x · x, once in a thousand times."""
    for id in ("Pendulum-v1", "Acrobot-v1"):
        envs = pair(id, 8)
        same(*(env.reset(seed=3) for env in envs))
        for act in actions(envs[1], 1500 if id == "Pendulum-v1" else 300):
            both_step(envs, act)


OPTIONS = [
    ("CartPole-v1", {"sutton_barto_reward": True}), ("Pendulum-v1", {"g": 3}), ("Pendulum-v1", {"rescale_actions": False}),
    ("MountainCar-v0", {"goal_velocity": 0.02}), ("MountainCarContinuous-v0", {"goal_velocity": 0.01}),
    ("FrozenLake-v1", {"is_slippery": False, "map_name": "8x8"}), ("FrozenLake-v1", {"desc": ["SFS", "FHG"]}),
    ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": True}), ("CliffWalking-v1", {"is_slippery": True}),
    ("Taxi-v4", {"is_rainy": True}),
]


@pytest.mark.parametrize("id, options", [(id, options) for id, options in OPTIONS if id in gym.registry])
def test_options_of_constructors_count(id, options):
    envs = pair(id, time_limit=60, **options)
    same(*(env.reset(seed=4) for env in envs))
    for act in actions(envs[1], 150):
        both_step(envs, act)


@pytest.mark.parametrize("id, goal_velocity", [("MountainCar-v0", 0), ("MountainCarContinuous-v0", 0),
                                               ("MountainCar-v0", 0.5), ("MountainCarContinuous-v0", 0.5)])
def test_cars_reach_their_goals_and_the_walls_on_both_sides(id, goal_velocity):
    envs = pair(id, goal_velocity=goal_velocity)
    obs, reached, seen = envs[0].reset(seed=1)[0], 0, []
    envs[1].reset(seed=1)
    for _ in range(180):
        forward = obs[:, 1] >= 0
        obs, _, terminated, *_ = both_step(envs, 2 * forward if id == "MountainCar-v0" else np.where(
            forward, 1.5, -1.0)[:, None].astype(np.float32))
        reached += int(terminated.sum())
        seen.append(obs[:, 0])
    if goal_velocity == 0:
        assert reached >= N
    else:
        assert not reached and (np.max(seen), np.min(seen)) == (np.float32(0.6), np.float32(-1.2))


class Narrow(gym.ObservationWrapper):
    def observation(self, observation):
        return observation


class Other(CartPoleEnv):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 7.0, *rest


def own_method():
    env = make_env("CartPole-v1")
    env.unwrapped.step = env.unwrapped.step
    return env


def noisy():
    env = make_env("Acrobot-v1")
    env.unwrapped.torque_noise_max = 0.5
    return env


@pytest.mark.parametrize("make", [
    lambda: make_env("CartPole-v1", render_mode="rgb_array"), lambda: make_env("CartPole-v1", wrappers=[Narrow]), Other,
    own_method, noisy, lambda: make_env("Pendulum-v1", clip_actions=False), lambda: make_env("FrozenLake-v1", map_name=None),
    lambda: make_env("Taxi-v4", fickle_passenger=True), lambda: gym.wrappers.TimeLimit(make_env("CartPole-v1"), 5)])
def test_other_environments_step_by_themselves(make):
    env = make_vector_env(make, 2)
    assert not is_compiled(env)
    env.reset(seed=1)
    env.step(env.action_space.sample())
    env.close()


@pytest.mark.parametrize("options", [{"kind": "thread"}, {"inline": True}, {"kind": "process", "inline": True}])
def test_other_kinds_step_the_environments_themselves(options):
    env = make_vector_env("CartPole-v1", 2, **options)
    assert not is_compiled(env)
    env.close()


def test_a_gymnasium_that_steps_otherwise_is_left_alone(monkeypatch):
    env = make_env("CartPole-v1")
    assert agrees(env, None)
    step = CartPoleEnv.step

    def other(self, action):
        obs, *rest = step(self, action)
        return np.nextafter(obs, np.float32(9)), *rest

    monkeypatch.setattr(CartPoleEnv, "step", other)
    assert not agrees(env, None) and env.unwrapped.state is None
    vector = make_vector_env("CartPole-v1", 2)
    assert not is_compiled(vector)
    vector.close()


def test_every_class_of_the_table_is_held_here():
    made = {f"{type(bare).__module__}.{type(bare).__qualname__}" for bare in (make_env(id).unwrapped for id in IDS)}
    assert made == set(CLASSES)


# ------------------------------------------------------------------------------------------- state, attributes, mistakes


@pytest.mark.parametrize("id", IDS)
def test_a_state_may_go_back_and_forth(id):
    envs = pair(id, time_limit=30)
    some = actions(envs[1], 60)
    for env in envs:
        env.reset(seed=21)
    for act in some[:25]:
        both_step(envs, act)
    state, played = envs[0].clone_state(), [envs[0].step(act) for act in some[25:]]
    for env in envs:  # the ordinary ones go on from the compiled ones' state, too
        env.restore_state(state)
        for act, out in zip(some[25:], played, strict=True):
            same(out, env.step(act))
    assert is_compiled(envs[0])
    back = envs[1].clone_state()
    envs[0].restore_state(back)
    both_step(envs, some[0])


def test_a_state_survives_a_checkpoint():
    from parl_like.environment.state import hold, unhold

    env = make_vector_env("Acrobot-v1", 2)
    env.reset(seed=3)
    some = actions(env, 30)
    for act in some[:10]:
        env.step(act)
    state = unhold(hold(clone_state(env)))
    played = [env.step(act) for act in some]
    other = make_vector_env("Acrobot-v1", 2)
    other.reset(seed=9)
    restore_state(other, state)
    for act, out in zip(some, played, strict=True):
        same(other.step(act), out)


def test_attributes_that_are_set_count_in_each_environment():
    envs = pair("CartPole-v1")
    for env in envs:
        env.reset(seed=2)
    some = actions(envs[1], 40)
    for act in some[:10]:
        both_step(envs, act)
    for env in envs:
        env.set_attr("gravity", [9.8, 1.0, 20.0])
    assert envs[0].get_attr("gravity") == (9.8, 1.0, 20.0)
    for act in some:
        both_step(envs, act)
    assert is_compiled(envs[0])
    for env in envs:
        env.set_attr("kinematics_integrator", "semi-implicit euler")
    for act in some:
        both_step(envs, act)
    for env in envs:
        env.set_attr("gravity", np.float32(3.0))  # NumPy's arithmetic with it is another one
    for act in some:
        both_step(envs, act)
    assert not is_compiled(envs[0])


def test_environments_that_somebody_holds_step_by_themselves():
    made = []

    def make(depth):
        env = make_env("Pendulum-v1")
        made.append([env, env.env, env.unwrapped][depth])
        return env

    for depth in range(3):
        assert not is_compiled(make_vector_env(lambda depth=depth: make(depth), 2))
    for ask in (lambda env: env.hosts[0].group.envs, lambda env: env.get_attr("unwrapped"), lambda env: env.get_attr("env")):
        env, other = pair("Pendulum-v1")
        same(env.reset(seed=1), other.reset(seed=1))
        some = actions(other, 4)
        both_step((env, other), some[0])
        held = [one.unwrapped for one in ask(env)]
        for act in some:
            both_step((env, other), act)
            same([one.state for one in held], [one.unwrapped.state for one in other.hosts[0].group.envs])


def test_environments_that_are_asked_at_each_step_step_by_themselves():
    envs = pair("Pendulum-v1")
    same(*(env.reset(seed=1) for env in envs))
    for k, act in enumerate(actions(envs[1], 40)):
        both_step(envs, act)
        if k % 10 == 0:
            same(*(env.get_attr("state") for env in envs))
    assert is_compiled(envs[0])
    for act in actions(envs[1], 10):
        both_step(envs, act)
        same(*(env.get_attr("state") for env in envs))
    assert not is_compiled(envs[0])


def test_a_table_that_is_changed_later():
    envs = pair("FrozenLake-v1", is_slippery=False)
    for env in envs:
        env.reset(seed=2)
        env.step(np.ones(N, np.int64))
        for table in env.get_attr("P"):
            table[4][1] = [(0.5, 0, 3.0, False), (0.5, 5, 1.0, True)]
    for _ in range(4):
        both_step(envs, np.ones(N, np.int64))
    assert envs[0].get_attr("s") == envs[1].get_attr("s")


def test_options_and_masks_of_a_reset():
    envs = pair("Pendulum-v1")
    same(*(env.reset(seed=2, options={"x_init": 0.1, "y_init": 0.2}) for env in envs))
    some = actions(envs[1], 6)
    both_step(envs, some[0])
    mask = np.array([True, False, True])
    same(*(env.reset(options={"reset_mask": mask, "x_init": 2.0}) for env in envs))
    both_step(envs, some[1])
    same(*(env.reset() for env in envs))
    assert envs[0].compiled.leads
    both_step(envs, some[4])
    same(*(env.reset(options={"reset_mask": ~mask}) for env in envs))
    same(clone_state(envs[0]), clone_state(envs[1]))
    same(*(env.reset(seed=[4, None, 7]) for env in envs))
    both_step(envs, some[2].astype(np.float64))
    both_step(envs, some[3].tolist())
    assert envs[0].np_random_seed == envs[1].np_random_seed == (4, 3, 7)


@pytest.mark.parametrize("id, act", [("CartPole-v1", 2), ("Pendulum-v1", np.nan), ("Taxi-v4", -1), ("MountainCar-v0", -1)])
def test_an_action_that_does_not_exist_is_told_as_ever(id, act):
    errors = []
    for env in pair(id):
        env.reset(seed=8)
        good = env.action_space.sample() * 0
        env.step(good)
        bad = good.copy()
        bad[1] = act
        with pytest.raises(EnvFailed) as caught:
            env.step(bad)
        errors.append((caught.value.what, caught.value.index, caught.value.seed, caught.value.fault))
        assert env.closed
    assert errors[0] == errors[1] and errors[0][1:3] == (1, 9)


def test_wrong_arrays_of_actions_change_nothing():
    env = make_vector_env("CartPole-v1", 2)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.int64))
    env.reset(seed=1)
    state = clone_state(env)
    for bad in (np.zeros(3, np.int64), np.zeros((2, 1), np.int64), np.zeros(2), [0.0, 1.0]):
        with pytest.raises(ValueError, match="one row for each environment"):
            env.step(bad)
    same(clone_state(env), state)
    for good in (np.zeros(2, np.int32), [0, 1], np.zeros(4, np.int64)[::2]):
        env.step(good)
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.step(np.zeros(2, np.int64))


def test_an_environment_is_rebuilt_and_compiled_again():
    env = make_vector_env("CartPole-v1", 2, restart=True)
    env.reset(seed=1)
    seen, *_ = env.step(np.array([0, 1]))
    *_, truncated, info = env.step(np.array([0, 5]))
    assert truncated.tolist() == [False, True] and info["dropped"].tolist() == [False, True]
    same(info["final_obs"][1], seen[1])
    env.step(np.array([0, 1]))
    assert env.compiled.leads
    env.close()


def test_an_episode_that_is_over_waits_for_its_reset():
    env = make_vector_env("CartPole-v1", 2, autoreset=AutoresetMode.DISABLED)
    env.reset(seed=1)
    over = np.zeros(2, bool)
    while not over.any():
        *_, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
        over = terminated | truncated
    with pytest.raises(gym.error.ResetNeeded, match="after the end of episodes"):
        env.step(np.zeros(2, np.int64))
    env.reset(options={"reset_mask": over})
    env.step(np.zeros(2, np.int64))
    env.close()


def test_numbers_that_are_none_are_an_error_as_ever():
    errors = []
    for env in pair("CartPole-v1", 2):
        env.reset(seed=1)
        env.step(np.ones(2, np.int64))
        env.set_attr("total_mass", [1.1, 0.0])
        with np.errstate(all="ignore"), pytest.raises(EnvFailed, match="NaN in the observation") as caught:
            env.step(np.zeros(2, np.int64))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_as_the_original(how):
    env = make_vector_env("Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3", 2)
    env.reset(seed=1)
    some = actions(env, 12)
    for act in some[:4]:
        env.step(act)
    other = how(env)
    assert other.clone_state()["obs"][0].tolist() == env.clone_state()["obs"][0].tolist()
    if how is not copy.copy:  # which shares the environments
        for act in some:
            same(env.step(act), other.step(act))


def test_observations_are_copies_unless_views_are_wanted():
    for kept in (True, False):
        env = make_vector_env("CartPole-v1", 2, copy=kept)
        first, _ = env.reset(seed=1)
        second, *_ = env.step(np.zeros(2, np.int64))
        third, *_ = env.step(np.zeros(2, np.int64))
        assert (second is third) is not kept and np.shares_memory(first, third) is not kept
        env.close()


# -------------------------------------------------------------------------------------------------------- against the twin

def kernel_of(kind, mode, obs, act, table=None):
    n = len(obs)
    return Steps(kind, mode, True, obs, obs.copy(), act, np.zeros(n), np.zeros(n, bool), np.zeros(n, bool), table)


STATES = {Kind.CARTPOLE: 4, Kind.PENDULUM: 2, Kind.MOUNTAIN_CAR: 2, Kind.MOUNTAIN_CAR_CONTINUOUS: 2, Kind.ACROBOT: 4}
SPREAD = {Kind.CARTPOLE: [2.5, 3, 0.25, 3], Kind.PENDULUM: [20, 8], Kind.MOUNTAIN_CAR: [1.3, 0.08],
          Kind.MOUNTAIN_CAR_CONTINUOUS: [1.3, 0.08], Kind.ACROBOT: [3.2, 3.2, 12, 28]}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("id", CONTROL)
def test_physics_are_those_of_the_twin_on_random_states(id, fresh):
    n, rng = 400, np.random.default_rng(6)
    parts = parts_of(make_env(id))
    kind, constants = parts.entry.kind, constants_of(parts)
    space = parts.bare.action_space
    act = rng.integers(space.n, size=n) if hasattr(space, "n") else rng.normal(size=(n, 1)).astype(np.float32)
    obs = np.zeros((n, *parts.bare.observation_space.shape), np.float32)
    kernel = kernel_of(kind, Mode.DISABLED, obs, act)
    state = rng.uniform(-1, 1, (n, STATES[kind])) * SPREAD[kind]
    if kind is Kind.MOUNTAIN_CAR_CONTINUOUS and not fresh:
        state = state.astype(np.float32).astype(np.float64)
    kernel.constants[:], kernel.state[:, :state.shape[1]], kernel.steps[:] = constants, state, not fresh
    for i in range(n):
        kernel.draw_from(i, rng)
    seen, rew, terminated, truncated, _ = kernel.step()
    out, seen_twin, rew_twin, ends = steps_twin.PHYSICS[kind](state, constants, act, fresh)
    assert not truncated.any() and ends.any() == (kind is not Kind.PENDULUM)
    np.testing.assert_array_equal(terminated, ends)
    for ours, theirs in ((kernel.state[:, :state.shape[1]], out), (seen, seen_twin), (rew, rew_twin)):
        # Of many sines at once NumPy may make others than of one.
        np.testing.assert_allclose(ours, theirs, rtol=1e-7 if ours is seen else 1e-12, atol=1e-14)
    assert kernel.over.astype(bool).tolist() == ends.tolist()


def test_tables_are_drawn_as_by_the_twin():
    rng, n, states, acts = np.random.default_rng(2), 50, 6, 3
    counts = rng.integers(1, 5, states * acts)
    probabilities = [rng.dirichlet(np.ones(count)) * (0.9 if k % 5 == 0 else 1.0) for k, count in enumerate(counts)]
    first, total, begin = np.cumsum([0, *counts]), int(counts.sum()), np.cumsum([0.0, 0.3, 0, 0.5, 0.2, 0])
    to, reward, ends = rng.integers(states, size=total), rng.normal(size=total), (rng.random(total) < 0.1).astype(np.uint8)
    table = Table(first, begin, np.concatenate([np.cumsum(p) for p in probabilities]), np.concatenate(probabilities), reward, to,
                  ends, None)
    obs, act = np.zeros(n, np.int64), rng.integers(acts, size=n)
    kernel = kernel_of(Kind.TABLE, Mode.NEXT_STEP, obs, act, table)
    generators = [np.random.default_rng(i) for i in range(n)]
    twins = copy.deepcopy(generators)
    kernel.state[:, 0] = at = rng.integers(states, size=n)
    for i, one in enumerate(generators):
        kernel.draw_from(i, one)
    over = np.zeros(n, bool)
    for _ in range(40):
        seen, rew, terminated, _, info = kernel.step()
        for i, one in enumerate(twins):
            if over[i]:
                at[i], over[i] = steps_twin.draw(np.diff(begin, prepend=0), one), False
                assert (seen[i], rew[i], terminated[i], info["prob"][i]) == (at[i], 0.0, False, 1.0)
                continue
            pair_of = at[i] * acts + act[i]
            chosen = first[pair_of] + steps_twin.draw(probabilities[pair_of], one)
            at[i], over[i] = to[chosen], ends[chosen]
            assert (seen[i], rew[i], terminated[i]) == (at[i], reward[chosen], bool(ends[chosen]))


def test_tables_are_read_whole():
    bare = make_env("Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3").unwrapped
    table = table_of(bare)
    assert (table.states, table.actions, len(table.first), COLUMNS >= 13) == (500, 6, 3001, True)
    for s, a in ((0, 0), (499, 5), (123, 4)):
        where = table.first[s * 6 + a]
        assert (table.chance[where], table.to[where], table.reward[where], bool(table.ends[where])) == bare.P[s][a][0]
        np.testing.assert_array_equal(table.masks[s], bare.action_mask(s))


def test_random_play_of_cartpole_lasts_as_long_as_published():
    """ReinforcementLearning.jl: the mean length of 10,000 episodes is 21 ± 2."""
    env, rng = make_vector_env("CartPole-v1", 500), np.random.default_rng(0)
    env.reset(seed=0)
    lengths, now = [], np.zeros(500, np.int64)
    while len(lengths) < 10_000:
        _, _, terminated, truncated, _ = env.step(rng.integers(2, size=500))
        now += 1
        lengths += now[terminated | truncated].tolist()
        now[terminated | truncated] = 0
    env.close()
    assert 19 < np.mean(lengths) < 23

"""Wrappers: what each does, and states through stacks of them."""

import collections
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot
from parl_like.data.transforms import Moments
from parl_like.environment.state import BARE, WRAPPERS
from parl_like.envs.atari import Atari
from parl_like.envs.doorkey import DoorKey
from parl_like.envs.make import ActionBounds, TimeLimit
from parl_like.envs.sokoban import SokobanEnv
from parl_like.envs.wrappers import (
    ActionRepeat,
    Discretize,
    GridCells,
    ImageChannelFirst,
    MultiDiscreteToDiscrete,
    NoisyObservation,
    NormalizeObservation,
    ObservationSubset,
    PreviousStep,
    SomeActions,
    TruncatedAsTerminated,
    clone_state,
    restore_state,
)

FrameStack = gym.wrappers.FrameStackObservation


class Counter(gym.Env):
    """The observation counts all steps ever; it is the same array each time, as careless environments have it."""

    def __init__(self, n=5, cut=10**9, reward=1.0):
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.n, self.cut, self.value, self.reward, self.actions = n, cut, reward, None, []
        self.reward, self.count, self.obs = reward, -1, np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        self.count += 1
        self.obs[:] = self.count, -self.count
        return self.obs

    def step(self, action):
        self.t += 1
        self.actions.append(action)
        return self.look(), self.reward, self.t >= self.n, self.t >= self.cut, {"t": self.t}


def make(name="CartPole-v1", **options):
    return gym.make(name, **options)


def test_statistics_that_change_make_an_environment_nondeterministic():
    env = NormalizeObservation(make(), update=False)
    assert env.spec.nondeterministic is False
    assert FrameStack(NormalizeObservation(make()), 4).spec.nondeterministic is True
    for env.update in (True, False, True):
        assert env.spec.nondeterministic is env.update
    assert env.env.spec.nondeterministic is False


def test_a_stack_of_wrappers_can_be_made_again_from_its_spec():
    env = gym.make(FrameStack(NormalizeObservation(ActionRepeat(Discretize(make("Pendulum-v1"), 3), 2)), 2).spec)
    assert [type(layer).__name__ for layer in layers(env)][:4] == [
        "FrameStackObservation",
        "NormalizeObservation",
        "ActionRepeat",
        "Discretize",
    ]
    assert env.stack_size == 2 and env.action_space == gym.spaces.Discrete(3)


def layers(env):
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


# --------------------------------------------------------------------------------------------------------------- normalised


def test_observations_in_standard_deviations():
    env = NormalizeObservation(Counter(n=100), clip=1.5)
    assert env.observation_space == gym.spaces.Box(-1.5, 1.5, (2,), np.float32)
    seen = [env.reset()[0]] + [env.step(0)[0] for _ in range(20)]
    for i, obs in enumerate(seen):
        values = np.arange(i + 1.0)
        wanted = min((i - values.mean()) / max(values.std(), 1e-4), 1.5)
        assert obs == pytest.approx([wanted, -wanted], abs=1e-5) and obs.dtype == np.float32


def test_statistics_are_saved_shared_and_frozen():
    env = NormalizeObservation(Counter(n=100))
    env.reset()
    for _ in range(9):
        env.step(0)
    saved = env.state_dict()
    test = NormalizeObservation(Counter(n=100), update=False)
    test.load_state_dict(saved)
    other = NormalizeObservation(Counter(n=100), moments=env.moments, update=False)
    values = np.arange(10.0)
    for frozen in (test, other):
        assert frozen.reset()[0] == pytest.approx([-values.mean() / values.std(), values.mean() / values.std()])
    assert np.array_equal(test.moments.mean, env.moments.mean) and env.moments.mean == pytest.approx([4.5, -4.5])
    env.step(0)
    assert np.array_equal(other.moments.mean, env.moments.mean) and env.moments.mean == pytest.approx([5, -5])
    with pytest.raises(ValueError, match="window"):
        NormalizeObservation(Counter(), moments=Moments(window=3)).load_state_dict(saved)


# --------------------------------------------------------------------------------------------------------------------- repeat


def test_repeat_stops_at_the_end():
    env = ActionRepeat(Counter(n=5), 3)
    env.reset()
    assert env.step(1)[1:] == (3.0, False, False, {"t": 3, "repeats": 3})
    obs, *rest = env.step(0)
    assert (
        obs.tolist() == [5, -5]
        and rest == [2.0, True, False, {"t": 5, "repeats": 2}]
        and env.unwrapped.actions == [1, 1, 1, 0, 0]
    )
    env = ActionRepeat(Counter(cut=1), 3)
    env.reset()
    assert env.step(1)[1:4] == (1.0, False, True)


# ------------------------------------------------------------------------------------------------------------------ discrete


class Sink(gym.Env):
    observation_space = gym.spaces.Discrete(1)

    def __init__(self, low, high):
        self.action_space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))

    def step(self, action):
        assert action in self.action_space
        return 0, 0.0, False, False, {"action": action}


def test_discrete_actions():
    env = Discretize(Sink([[-1, 0]], [[1, 10]]), [3, 2])
    assert env.action_space == gym.spaces.Discrete(6)
    actions = [env.step(i)[4]["action"] for i in range(6)]
    assert [a.tolist() for a in actions] == [[[x, y]] for x in (-1, 0, 1) for y in (0, 10)] and actions[0].dtype == np.float32
    env = Discretize(Sink([-1, 0], [1, 10]), [3, 1], joint=False)
    assert env.action_space == gym.spaces.MultiDiscrete([3, 1])
    assert env.step(np.array([2, 0]))[4]["action"].tolist() == [1, 5]
    assert Discretize(Sink([-1, 0], [1, 10]), np.int64(3)).action_space == gym.spaces.Discrete(9)
    assert Discretize(Sink([0] * 9, [1] * 9), 5, joint=False).action_space == gym.spaces.MultiDiscrete([5] * 9)
    with pytest.raises(ValueError, match="action is array"):
        env.step(np.array([3, 0]))


class Several(gym.Env):
    """Three choices, in a space of two rows where `nested`, of which an observation says by a mask what is legal."""

    def __init__(self, masked=True, nested=False):
        nvec, start = np.array([2, 3, 2]), np.array([0, -1, 5])
        self.action_space = gym.spaces.MultiDiscrete(nvec[None] if nested else nvec, start=start[None] if nested else start)
        parts = {"x": gym.spaces.Discrete(3), **({"mask": gym.spaces.MultiBinary(7)} if masked else {})}
        self.observation_space = gym.spaces.Dict(parts)
        self.masked = masked

    def obs(self, *legal):
        return {"x": 1, **({"mask": np.array(legal, np.int8)} if self.masked else {})}

    def reset(self, *, seed=None, options=None):
        return self.obs(1, 1, 0, 1, 1, 1, 0), {}

    def step(self, action):
        assert action in self.action_space
        return self.obs(0, 1, 0, 0, 0, 1, 1), 1.0, False, True, {"action": action}


def test_several_choices_are_one_of_all_combinations():
    env = MultiDiscreteToDiscrete(Several(masked=False))
    assert env.action_space == gym.spaces.Discrete(12) and env.reset()[0] == {"x": 1}
    actions = [env.step(i)[4]["action"].tolist() for i in range(12)]
    assert actions == [[a, b, c] for a in (0, 1) for b in (-1, 0, 1) for c in (5, 6)]
    nested = MultiDiscreteToDiscrete(Several(nested=True))
    assert nested.step(np.int64(7))[4]["action"].tolist() == [actions[7]]
    with pytest.raises(ValueError, match=r"action is 12; expected one of Discrete\(12\)"):
        env.step(12)


def test_a_mask_of_choices_becomes_one_of_combinations():
    env = MultiDiscreteToDiscrete(Several())
    assert env.observation_space["mask"] == gym.spaces.MultiBinary(12)
    legal = env.reset()[0]["mask"]
    assert legal.dtype == np.int8 and legal.reshape(2, 3, 2).tolist() == [[[0, 0], [1, 0], [1, 0]]] * 2
    obs = env.step(0)[0]  # nothing of the second choice is legal, which allows everything
    assert obs["mask"].reshape(2, 3, 2).tolist() == [[[0, 0]] * 3, [[1, 1]] * 3] and obs in env.observation_space
    with Robot.of("DQN", lambda: TimeLimit(MultiDiscreteToDiscrete(Several()), 5), seed=0, n_agents=1, random_steps=50) as robot:
        robot.run(60)  # whatever is drawn or chosen is legal
        buffer = robot.buffers["RL"][:]
        assert (buffer.obs.mask[np.arange(len(buffer)), buffer.act.astype(int)] == 1).all()


def test_a_limit_of_steps_as_a_true_end():
    env = TruncatedAsTerminated(make(max_episode_steps=3))
    env.reset(seed=0)
    seen = [env.step(0) for _ in range(3)]
    assert [(one[2], one[3], one[4]) for one in seen] == [(False, False, {})] * 2 + [(True, False, {"truncated": True})]
    env = TruncatedAsTerminated(make())
    env.reset(seed=0)
    while not (last := env.step(0))[2]:
        pass
    assert last[3] is False and last[4] == {"truncated": False}


@pytest.mark.parametrize("build, message", [
    (lambda: MultiDiscreteToDiscrete(make()), "actions are Discrete.*expected a MultiDiscrete"),
    (lambda: MultiDiscreteToDiscrete(Discretize(Sink([0] * 9, [1] * 9), 5, joint=False)), "1953125 combinations"),
    (lambda: Discretize(make()), "actions are Discrete"), (lambda: Discretize(Sink([-np.inf], [1])), "finite bounds"),
    (lambda: Discretize(Sink([0, 0], [1, 1]), [3]), "expected 2 numbers"), (lambda: Discretize(Sink([0], [1]), 0), "at least 1"),
    (lambda: Discretize(Sink([0] * 9, [1] * 9), 5), "1953125 combinations"), (lambda: ActionRepeat(Counter(), 0), "n is 0"),
    (lambda: NormalizeObservation(Counter(), clip=0), "clip is 0"),
    (lambda: NormalizeObservation(make("FrozenLake-v1")), "observations are Discrete"),
])  # fmt: skip
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# --------------------------------------------------------------------------------------------------------------------- state


def trace(env, steps, seed=0):
    space = env.action_space
    space.seed(seed)
    rows = []
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(space.sample())
        if "episode" in info:
            info = info | {"episode": (info["episode"]["r"], info["episode"]["l"])}  # without its wall-clock time
        rows.append((np.asarray(obs).tobytes(), reward, terminated, truncated, str(info)))
        if terminated or truncated:
            rows.append(np.asarray(env.reset()[0]).tobytes())
    return rows


def check_replay(build, warm=(1, 23), steps=120):
    env = build()
    env.reset(seed=3)
    for i, n in enumerate(warm):
        trace(env, n, seed=10 + i)
        state = clone_state(env)
        first = trace(env, steps)
        for _ in range(2):  # a state may be restored more than once
            restore_state(env, state)
            assert trace(env, steps) == first
        fresh = build()
        restore_state(fresh, state)
        assert trace(fresh, steps) == first
        used = build()
        used.reset(seed=99)
        trace(used, 5)
        restore_state(used, state)
        assert trace(used, steps) == first
        assert any(isinstance(row, bytes) for row in first), "no episode ended: the generator was not used"


STACKS = {
    "CartPole-v1": lambda env: env,
    "MountainCar-v0": lambda env: env,
    "MountainCarContinuous-v0": lambda env: env,
    "Acrobot-v1": lambda env: env,
    "Pendulum-v1": lambda env: env,
    "FrozenLake-v1": lambda env: env,
    "CliffWalking-v1": lambda env: env,
    "Taxi-v4": lambda env: env,
}


@pytest.mark.parametrize("name", STACKS)
def test_classic_control_and_tables_replay(name):
    check_replay(lambda: gym.make(name, max_episode_steps=40))


def test_a_passenger_who_changes_their_mind_replays():
    check_replay(lambda: gym.make("Taxi-v4", max_episode_steps=40, fickle_passenger=True, is_rainy=True))


class InPlace(Counter):
    """Its state is one list that it changes."""

    def __init__(self):
        super().__init__(n=3)
        self.state = None

    def reset(self, **kwargs):
        self.state = [0]
        return super().reset(**kwargs)

    def step(self, action):
        self.state[0] += 1
        return super().step(action)


def test_a_state_is_a_copy_and_stays_one(monkeypatch):
    monkeypatch.setitem(BARE, f"{__name__}.InPlace", ("state",))
    env = InPlace()
    with pytest.raises(gym.error.ResetNeeded, match="InPlace has no state yet"):
        clone_state(env)
    env.reset(seed=5)
    state = clone_state(env)
    for _ in range(2):
        env.step(0)
        assert env.state == [1] and state["layers"][0][1]["values"] == {"state": [0]}
        restore_state(env, state)
        assert env.state == [0]
    env.reset(seed=6)
    restore_state(env, state)
    assert env.np_random_seed == 5


def test_what_the_bare_environment_refuses_changes_no_wrapper():
    env = FrameStack(SokobanEnv(size=5, n_boxes=1, obs="planes"), 2)
    env.reset(seed=0)
    state = clone_state(env)
    env.step(1)
    frames = list(env.obs_queue)
    broken = {"layers": [state["layers"][0], (state["layers"][1][0], {})]}
    with pytest.raises((KeyError, ValueError, TypeError)):
        restore_state(env, broken)
    assert all(a is b for a, b in zip(env.obs_queue, frames, strict=True))


def test_cartpole_beyond_its_end():
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    while not env.step(1)[2]:
        pass
    state = clone_state(env)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert env.step(1)[1] == 0.0
    env.reset()
    restore_state(env, state)
    with pytest.warns(UserWarning, match="already returned terminated"):
        assert env.step(1)[1] == 0.0


@pytest.mark.parametrize("name", ["stack", "own", "made", "gymnasium's"])
def test_stacks_of_wrappers_replay(name):
    def build():
        if name == "stack":
            return ActionRepeat(FrameStack(gym.make("CartPole-v1"), 3), 2)
        if name == "own":
            moments = Moments()
            moments.update(np.random.default_rng(0).normal(size=(50, 5)))
            env = Discretize(NoisyObservation(gym.make("Pendulum-v1", max_episode_steps=30), 2), 5)
            return FrameStack(NormalizeObservation(env, moments=moments, update=False), 2)
        if name == "made":
            return TimeLimit(ActionBounds(gym.make("Pendulum-v1")), 30)
        env = gym.wrappers.RecordEpisodeStatistics(gym.make("Acrobot-v1", max_episode_steps=30))
        return gym.wrappers.FlattenObservation(env)

    check_replay(build)


def test_environments_with_states_of_their_own_replay():
    check_replay(lambda: FrameStack(SokobanEnv(size=5, n_boxes=1, obs="planes", max_steps=20), 2))


@pytest.mark.parametrize("noisy", [False, True])
def test_rooms_with_a_key_replay(noisy):
    pytest.importorskip("minigrid")
    check_replay(lambda: NoisyObservation(DoorKey(5, 30), 2) if noisy else DoorKey(5, 30), warm=(1, 23, 61))


def test_noise_replays_over_chance_of_another_kind():
    check_replay(
        lambda: NoisyObservation(gym.wrappers.FlattenObservation(SokobanEnv(size=5, n_boxes=1, obs="planes", max_steps=20)), 2)
    )


def test_atari_replays_below_wrappers():
    pytest.importorskip("ale_py")
    check_replay(lambda: gym.wrappers.TimeLimit(FrameStack(Atari("breakout", 21, grey=True, sticky=0.25, stack=1), 2), 30),
                 warm=(3,), steps=60)


def test_noise_is_appended_and_normal():
    env = NoisyObservation(Counter(n=5000), 3)
    rows = np.array([env.reset(seed=1)[0]] + [env.step(0)[0] for _ in range(3000)])
    assert (
        rows.dtype == np.float32
        and rows.shape == (3001, 5)
        and env.observation_space == gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    )
    np.testing.assert_array_equal(rows[:, :2], np.arange(3001)[:, None] * [1, -1])
    np.testing.assert_allclose(np.cov(rows[:, 2:].T), np.eye(3), atol=0.1)  # 5 standard deviations are 0.13 on the diagonal
    np.testing.assert_allclose(rows[:, 2:].mean(0), 0, atol=0.1)
    assert NoisyObservation(Counter(), 0).reset()[0].tolist() == [0, 0]
    mixed = NoisyObservation(Counter(n=5000), 3, mixed=True)
    turned = np.array([mixed.reset(seed=1)[0]] + [mixed.step(0)[0] for _ in range(9)])
    np.testing.assert_allclose(turned @ turned.T, rows[:10] @ rows[:10].T, rtol=1e-4)  # lengths and angles stay
    assert (np.abs(turned[9] - rows[9]) > 0.01).all()
    for n, env in ((-1, Counter()), (1, make("FrozenLake-v1")), (1, FrameStack(Counter(), 2))):
        with pytest.raises(ValueError, match="expected n ≥ 0 and a vector"):
            NoisyObservation(env, n)


def test_a_state_stays_as_it_is():
    env = FrameStack(gym.make("Acrobot-v1"), 2)
    env.reset(seed=0)
    state = clone_state(env)
    before = str(state)
    trace(env, 30)
    restore_state(env, state)
    trace(env, 30)
    assert str(state) == before


def test_statistics_are_not_in_the_state():
    env = NormalizeObservation(gym.make("Acrobot-v1"))
    env.reset(seed=0)
    state = clone_state(env)
    env.step(0)
    mean = env.moments.mean
    restore_state(env, state)
    assert env.moments.mean.tolist() == mean.tolist()


def test_what_is_not_known_is_refused_by_name():
    class Other(gym.Wrapper):
        pass

    with pytest.raises(TypeError, match=r"what .*Other remembers is not known; give it the methods own_state and restore_own"):
        clone_state(Other(gym.make("CartPole-v1")))
    env = FrameStack(Counter(), 4)
    env.reset()
    with pytest.raises(TypeError, match=r"what .*\.Counter remembers is not known; give it the methods clone_state and "
                                        r"restore_state"):
        clone_state(env)

    class Longer(type(gym.make("CartPole-v1").unwrapped)):
        pass

    with pytest.raises(TypeError, match="Longer"):  # may remember more than its parent
        clone_state(Longer())
    for name, missing in [("Pendulum-v1", "PendulumEnv has no state, last_u"), ("CartPole-v1", "CartPoleEnv has no state"),
                          ("Acrobot-v1", "AcrobotEnv has no state"), ("FrozenLake-v1", "FrozenLakeEnv has no s, lastaction")]:
        with pytest.raises(gym.error.ResetNeeded, match=missing + " yet"):
            clone_state(gym.make(name))


def test_ale_pys_own_environment_is_refused():
    ale_py = pytest.importorskip("ale_py")
    with pytest.raises(TypeError, match="use parl_like.envs.atari.Atari"):
        clone_state(ale_py.AtariEnv("breakout"))


def test_a_state_of_other_layers_is_refused():
    env = gym.make("CartPole-v1")
    env.reset()
    with pytest.raises(ValueError, match="the state is of TimeLimit → .*CartPoleEnv; expected FrameStackObservation → TimeLimit"):
        restore_state(FrameStack(gym.make("CartPole-v1"), 4), clone_state(env))


def test_a_state_sets_no_other_attributes():
    env = gym.make("CartPole-v1")
    env.reset()
    state = clone_state(env)
    bare = next(part for name, part in state["layers"] if name.endswith("CartPoleEnv"))
    bare["values"]["render_mode"] = "human"
    with pytest.raises(ValueError, match=r"CartPoleEnv has \['render_mode', 'state', 'steps_.*'\]; expected \['state', 'steps_"):
        restore_state(env, state)
    assert env.unwrapped.render_mode is None


def test_the_tables_name_classes_that_exist():
    for name in collections.ChainMap(BARE, WRAPPERS):
        module, _, kind = name.rpartition(".")
        __import__(module)
        assert isinstance(getattr(sys.modules[module], kind), type)


def test_a_subset_of_an_observation():
    """Place and angle of the pole, in the order that was asked for; bounds are theirs."""
    env, whole = ObservationSubset(make(), [2, 0]), make()
    (obs, _), (seen, _) = env.reset(seed=3), whole.reset(seed=3)
    assert obs.tolist() == [seen[2], seen[0]] and env.observation_space.contains(obs)
    assert env.observation_space.high.tolist() == whole.observation_space.high[[2, 0]].tolist()
    state = clone_state(env)
    first = [env.step(1)[0].tolist() for _ in range(3)]
    restore_state(env, state)
    assert [env.step(1)[0].tolist() for _ in range(3)] == first
    for indices in ([], [0, 0], [4], [-1]):
        with pytest.raises(ValueError, match="ObservationSubset: indices is .* expected different places of a vector"):
            ObservationSubset(make(), indices)


def test_channels_come_first():
    class Picture(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 255, (2, 3, 4), np.uint8), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.arange(24, dtype=np.uint8).reshape(2, 3, 4), {}

    env = ImageChannelFirst(Picture())
    obs, _ = env.reset()
    assert obs.shape == env.observation_space.shape == (4, 2, 3) and obs[1].tolist() == [[1, 5, 9], [13, 17, 21]]
    for key in ("image", None):
        with pytest.raises(ValueError, match="ImageChannelFirst: key is .* expected an image"):
            ImageChannelFirst(make(), key)


def test_what_was_done_and_earned_before_stands_beside_the_observation():
    """Also where the environment writes into the array of the action."""
    env = PreviousStep(Counter(reward=2.0))
    obs, _ = env.reset()
    assert obs["obs"].tolist() == [0, 0] and (obs["prev_act"], obs["prev_rew"].item(), obs["first"].item()) == (0, 0.0, 1)
    obs = env.step(1)[0]
    assert obs["obs"].tolist() == [1, -1] and (obs["prev_act"], obs["prev_rew"].item(), obs["first"].item()) == (1, 2.0, 0)
    assert env.observation_space.contains({**obs, "obs": obs["obs"].copy()})
    with pytest.raises(ValueError, match="PreviousStep: .*they have first, prev_act, prev_rew already"):
        PreviousStep(env)


def test_an_agent_learns_from_what_it_earned():
    """The reward tells which of two actions pays in this episode, and the environment does not show it. Of 10 steps 9 can be
    right, and 9.5 are in the mean."""
    class Which(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left, self.good = 10, int(self.np_random.integers(2))
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.left -= 1
            return np.zeros(1, np.float32), float(action == self.good), False, self.left == 0, {}

    with Robot.of("PPO", lambda: PreviousStep(Which()), seed=0, n_agents=8, unroll=20, lr=0.01, gamma=0.5, epochs=4,
                  minibatches=2) as robot:
        robot.run(4800)
        assert robot.evaluate(50).mean_return > 7.0


def test_some_actions_are_those_of_the_environment():
    env = SomeActions(gym.make("CliffWalking-v1"), [1, 0])
    env.reset(seed=0)
    assert env.action_space == gym.spaces.Discrete(2) and env.step(1)[0] == 24  # 36 is the start, and 0 goes up
    for wrong in ([], [0, 0], [4], [-1]):
        with pytest.raises(ValueError, match="expected choices of a Discrete, each once"):
            SomeActions(gym.make("CliffWalking-v1"), wrong)
    with pytest.raises(ValueError, match="of Box"):
        SomeActions(gym.make("Pendulum-v1"), [0])


def test_cells_of_a_grid_are_objects_and_doors_by_their_state():
    minigrid = pytest.importorskip("minigrid.core.constants")
    env = GridCells(gym.make("MiniGrid-LockedRoom-v0"))
    seen = set()
    obs, _ = env.reset(seed=0)
    for step in range(300):
        image = env.unwrapped.gen_obs()["image"]
        names = np.array(["" for _ in range(49)], dtype=object).reshape(7, 7)
        for x, y in np.ndindex(7, 7):
            kind, state = minigrid.IDX_TO_OBJECT[image[x, y, 0]], image[x, y, 2]
            names[x, y] = f"door {state}" if kind == "door" else kind
        order = ["unseen", "empty", "wall", "floor", "door 0", "key", "ball", "box", "goal", "lava", "agent", "door 1", "door 2"]
        assert obs.shape == (7, 7, 13) and (obs.sum(2) == 1).all()
        assert [order[i] for i in obs.argmax(2).ravel()] == names.ravel().tolist()
        seen |= set(names.ravel())
        obs = env.step(int(np.random.default_rng(step).choice([0, 1, 2, 2, 5])))[0]
    assert {"door 0", "door 1"} <= seen
    with pytest.raises(ValueError, match="expected a Dict with an `image`"):
        GridCells(gym.make("CartPole-v1"))

"""gymnasium's own checker, with warnings as errors, on every environment and wrapper of ours."""

import importlib
import inspect
import pkgutil
import types
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from aec_fakes import aec_of, leaving

import parl_like.envs as envs
from parl_like.envs.atari import Atari
from parl_like.envs.bit_flip import BitFlip
from parl_like.envs.combination_lock import CombinationLock
from parl_like.envs.deep_sea import DeepSea
from parl_like.envs.doorkey import DoorKey
from parl_like.envs.four_rooms import FourRooms
from parl_like.envs.games import GameEnv, Kuhn, Leduc, TicTacToe
from parl_like.envs.games.all_seats import AllSeats
from parl_like.envs.joint import Joint
from parl_like.envs.make import ActionBounds, DmEnv, FiveValues, OldStyle, TimeLimit, make_env
from parl_like.envs.minatar import MinAtar
from parl_like.envs.multitask import Multitask
from parl_like.envs.pettingzoo import AECPlayer
from parl_like.envs.plane import Plane
from parl_like.envs.prepared import GridView
from parl_like.envs.recall import Recall
from parl_like.envs.sokoban import SokobanEnv
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.envs.textbook import BlackjackTable, Maze, NChain, RiverSwim, Testbed
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
    RewardWeights,
    SomeActions,
    TruncatedAsTerminated,
)
from parl_like.lab.probes.env import EnvProbe, alike, check_gymnasium


class Drift(gym.Env):
    """A point that an action and chance move; an episode has four steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"
    observation_space = gym.spaces.Box(-50, 50, (2,), np.float32)

    def __init__(self, low=-1.0, high=1.0):
        self.action_space = gym.spaces.Box(low, high, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.at = 0, self.np_random.uniform(-1, 1, 2)
        return self.at.astype(np.float32), {}

    def step(self, action):
        assert action in self.action_space, action
        self.t, self.at = self.t + 1, self.at + action + self.np_random.uniform(-1, 1, 2)
        return self.at.astype(np.float32), float(self.at[0]), self.t == 4, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


class TwoRewards(Drift):
    """The same with two rewards, in an array that it changes in place."""

    rewards = np.zeros(2)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.rewards[:] = reward, 1.0
        return obs, self.rewards, *rest


class Old:
    """The same as before gymnasium."""

    metadata = {"render.modes": ["rgb_array"], "video.frames_per_second": 10}
    render_mode = "rgb_array"
    observation_space, action_space = Drift.observation_space, gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        self.env, self.seeded = Drift(), None

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        obs, _ = self.env.reset(seed=self.seeded)
        self.seeded = None
        return obs

    def step(self, action):
        obs, reward, done, _, info = self.env.step(action)
        return obs, reward, done, info

    def render(self, mode="human"):
        return {"rgb_array": self.env.render()}[mode]


class Dm(Old):
    """The same as dm_env has it."""

    def observation_spec(self):
        return {"at": types.SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32), minimum=-50, maximum=50)}

    def action_spec(self):
        return types.SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32), minimum=-1, maximum=1)

    def reset(self):
        return types.SimpleNamespace(observation={"at": super().reset()}, reward=None, discount=None, last=lambda: False)

    def step(self, action):
        obs, reward, done, _ = super().step(action)
        return types.SimpleNamespace(observation={"at": obs}, reward=reward, discount=0.0 if done else 1.0, last=lambda: done)


CASES = {
    TimeLimit: [lambda: TimeLimit(Drift(), 2), lambda: make_env(Drift, time_limit=2)],
    ActionBounds: [lambda: ActionBounds(Drift(0.0, 4.0)), lambda: make_env(lambda: Drift(-2.0, 9.0))],
    FiveValues: [lambda: FiveValues(Drift())],
    OldStyle: [lambda: OldStyle(Old()), lambda: make_env(Old, time_limit=2)],
    DmEnv: [lambda: DmEnv(Dm()), lambda: make_env(Dm, time_limit=2)],
    NormalizeObservation: [lambda: NormalizeObservation(gym.make("Acrobot-v1")),
                           lambda: NormalizeObservation(Drift(), update=False)],
    ActionRepeat: [lambda: ActionRepeat(Drift(), 3)],
    RewardWeights: [lambda: RewardWeights(TwoRewards(), [1.0, -0.5])],
    Discretize: [lambda: Discretize(Drift(), 3), lambda: Discretize(Drift(), [2, 3], joint=False)],
    MultiDiscreteToDiscrete: [lambda: MultiDiscreteToDiscrete(Discretize(Drift(), [2, 3], joint=False))],
    TruncatedAsTerminated: [lambda: TruncatedAsTerminated(TimeLimit(Drift(), 2))],
    ObservationSubset: [lambda: ObservationSubset(Drift(), [1])],
    ImageChannelFirst: [lambda: ImageChannelFirst(MinAtar())],
    Multitask: [lambda: Multitask([lambda: gym.make("CartPole-v1")] * 2), lambda: Multitask([Drift], "progress", False)],
    PreviousStep: [lambda: PreviousStep(Drift()), lambda: PreviousStep(gym.make("CartPole-v1"))],
    NoisyObservation: [lambda: NoisyObservation(Drift(), 2), lambda: NoisyObservation(ActionRepeat(Drift(), 2), 1)],
    Atari: [lambda: Atari("breakout", 21, render_mode="rgb_array"),
            lambda: Atari("pong", 21, grey=True, sticky=0.25, clip_reward=1)],
    TableEnv: [lambda: TableEnv.from_gymnasium(gym.make("FrozenLake-v1")),
               lambda: TableEnv.from_gymnasium(gym.make("CliffWalking-v1"))],
    RandomWalk: [lambda: RandomWalk(render_mode="ansi")],
    Plane: [Plane],
    CombinationLock: [lambda: CombinationLock(4, render_mode="ansi")],
    FourRooms: [lambda: FourRooms(render_mode="ansi"), lambda: FourRooms(62, 89, 10)],
    Maze: [lambda: Maze(render_mode="ansi")], NChain: [NChain], RiverSwim: [RiverSwim], BlackjackTable: [BlackjackTable],
    Testbed: [lambda: Testbed(5), lambda: gym.make("Testbed-v0")],
    GameEnv: [lambda game=game: GameEnv(game(), player=None, illegal=-1.0, render_mode="ansi") for game in (Kuhn, Leduc,
                                                                                                            TicTacToe)],
    # whose first moves are all legal, for the checker reads no mask
    AllSeats: [lambda: AllSeats(Kuhn(), render_mode="ansi"), lambda: AllSeats(TicTacToe(), render_mode="ansi")],
    AECPlayer: [lambda: AECPlayer(aec_of(Kuhn()), 1)],
    Joint: [lambda: Joint(leaving(2, 3)), lambda: Joint(leaving(2, 0, 3, masks=True), reward="mean", alive=True)],
    SokobanEnv: [lambda: SokobanEnv(size=5, n_boxes=1), lambda: SokobanEnv(obs="planes", render_mode="rgb_array")],
    DoorKey: [lambda: DoorKey(5)],
    GridView: [lambda: make_env("MiniGrid-DoorKey-5x5-v0")],
    GridCells: [lambda: GridCells(make_env("MiniGrid-DoorKey-5x5-v0"))],
    SomeActions: [lambda: SomeActions(gym.make("Acrobot-v1"), [2, 0])],
    Recall: [lambda: Recall(), lambda: Recall(0, 3)],
    BitFlip: [lambda: BitFlip(), lambda: BitFlip(3)],
    DeepSea: [lambda: DeepSea(), lambda: DeepSea(4)],
    MinAtar: [lambda: MinAtar(), lambda: MinAtar("freeway", sticky=0.0, ramping=False)],
}  # fmt: skip
COUNTS = {NormalizeObservation, FourRooms}
"""What they have counted decides what comes, too: statistics, and steps until the goal moves."""
NEEDS = {Atari: "ale_py", DoorKey: "minigrid", GridCells: "minigrid", GridView: "minigrid", AECPlayer: "pettingzoo",
         Joint: "pettingzoo", MinAtar: "minatar"}

@pytest.mark.parametrize("kind, i", [(kind, i) for kind in CASES for i in range(len(CASES[kind]))])
def test_gymnasiums_own_checker(kind, i):
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    env = CASES[kind][i]()
    check_gymnasium(env, skip_render=env.spec is not None)  # gymnasium's own need pygame
    env.close()


@pytest.mark.parametrize("kind, i", [(kind, i) for kind in CASES if kind not in COUNTS for i in range(len(CASES[kind]))])
def test_a_seed_says_all_that_follows_whatever_was_played_before(kind, i):
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    probe = EnvProbe(CASES[kind][i], 40)
    fresh, used = CASES[kind][i](), CASES[kind][i]()
    expected = probe.played(fresh, 40)
    probe.played(used, 55, seed=8)
    assert all(map(alike, probe.played(used, 40), expected))
    fresh.close()
    used.close()


def test_none_is_missing():
    """In the modules of `parl_like.envs`, single environments only."""
    ours = set()
    for module in pkgutil.walk_packages(envs.__path__, "parl_like.envs."):
        if "__main__" not in module.name:
            ours |= {kind for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)}
    ours = {kind for kind in ours if issubclass(kind, gym.Env) and kind.__name__[0] != "_"
            and kind.__module__.startswith("parl_like.envs")}
    assert ours == set(CASES)


@pytest.mark.parametrize("wrap", [
    lambda env: TimeLimit(env, 2), ActionBounds, NormalizeObservation, lambda env: ActionRepeat(env, 2),
    Discretize, lambda env: NoisyObservation(env, 2), TruncatedAsTerminated,
    lambda env: ObservationSubset(env, [0, 1]), PreviousStep,
    lambda env: MultiDiscreteToDiscrete(Discretize(env, joint=False)),
])  # fmt: skip
def test_a_wrapped_environment_can_be_made_again_from_its_spec(wrap):
    env = wrap(gym.make("Pendulum-v1"))
    again = gym.make(env.spec)
    assert type(again) is type(env) and again.observation_space == env.observation_space
    assert again.action_space == env.action_space

"""Search with the true environment: shortest ways, environments that cannot clone their state, and what is refused."""

import threading

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot
from parl_like.envs.thinker.snapshots import CopiedEnvs, EnvSnapshots
from parl_like.lab import config as configs
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import mcts


class Corridor(gym.Env):
    """Five cells; the last one is worth 1, a step 0. It cannot clone its state."""

    observation_space, action_space = gym.spaces.Discrete(5), gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return 0, {}

    def step(self, action):
        self.at = max(self.at + (1 if action == 2 else -1), 0)
        return self.at, float(self.at == 4), self.at == 4, False, {}


class Cloning(Corridor):
    def clone_state(self):
        return {"at": self.at}

    def restore_state(self, state):
        self.at = state["at"]


@pytest.mark.parametrize(("kind", "snapshots"), [(Cloning, EnvSnapshots), (Corridor, CopiedEnvs)])
def test_the_shortest_way(kind, snapshots):
    with Robot(kind, tasks={}, agent=lambda: mcts.MCTSAgent(60, depth=20, gamma=0.9), seed=0) as robot:
        assert type(robot.agents[0].snapshots) is snapshots
        lengths = []
        for _ in robot.iterate(12):
            lengths.append(robot.agents[0].env.episode_length)
        assert robot.env_steps == 12 and robot.episodes == 3 and list(robot.recent_returns) == [1.0] * 3, "four steps each"


def test_a_lake_is_crossed():
    with mcts.build(configs.resolve(mcts.Config, {"simulations": 60, "gamma": 0.95, "depth": 20}, {})) as robot:
        assert robot.evaluate(1, seed=0).mean_return == 1.0


def test_the_real_environment_stays_where_it_is():
    with Robot("CartPole-v1", tasks={}, agent=lambda: mcts.MCTSAgent(20, depth=5), seed=0) as robot:
        robot.run(3)
        agent = robot.agents[0]
        before = np.array(agent.env.unwrapped.state)
        agent.best(agent.env.last_step[0])
        assert (np.array(agent.env.unwrapped.state) == before).all()


class Masked(Corridor):
    """The corridor with a third action that breaks it, and that its mask forbids; on even cells so does the way back."""

    observation_space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "at": gym.spaces.Discrete(5)})
    action_space = gym.spaces.Discrete(3, start=1)

    def observed(self):
        return {"mask": np.array([self.at % 2, 1, 0], np.int8), "at": self.at}

    def reset(self, **options):
        super().reset(**options)
        return self.observed(), {}

    def step(self, action):
        assert self.observed()["mask"][action - 1], "an illegal action"
        _, *rest = super().step(action)
        return self.observed(), *rest


class MaskedCloning(Masked, Cloning):
    pass


@pytest.mark.parametrize("kind", [Masked, MaskedCloning])
def test_illegal_actions_are_taken_neither_in_search_nor_behind_it(kind):
    """The environment raises at one, and so would a continuation that took it."""
    with Robot(kind, tasks={}, agent=lambda: mcts.MCTSAgent(40, depth=12, gamma=0.9), seed=0) as robot:
        robot.run(4)
        agent = robot.agents[0]
        assert list(robot.recent_returns) == [1.0]
        agent.env.reset()
        agent.best(agent.env.last_step[0])
        assert agent.tree.found().visits.tolist() == [[0, 40, 0]]


class Tuples(Corridor):
    observation_space = gym.spaces.Tuple([gym.spaces.Discrete(5), gym.spaces.Box(0, 1, (2,), np.float32)])

    def reset(self, **options):
        super().reset(**options)
        return (0, np.zeros(2, np.float32)), {}

    def step(self, action):
        at, *rest = super().step(action)
        return (at, np.zeros(2, np.float32)), *rest


class Icy(Corridor):
    """Every second step stays where it is, by chance."""

    def step(self, action):
        return super().step(action) if self.np_random.random() < 0.5 else (self.at, 0.0, False, False, {})


@pytest.mark.parametrize("make", [Tuples, Icy, lambda: gym.wrappers.TimeLimit(Corridor(), 30)], ids=["tuples", "chance", "limit"])
def test_any_environment_that_can_be_copied_is_searched(make):
    with Robot(make, tasks={}, agent=lambda: mcts.MCTSAgent(30, depth=20, gamma=0.9), seed=0) as robot:
        robot.run(20)
        assert robot.episodes and set(robot.recent_returns) == {1.0}


def test_an_end_by_a_time_limit_ends_a_continuation():
    """Three steps are too few for the prize, and each is worth nothing."""
    make = lambda: gym.wrappers.TimeLimit(Corridor(), 3)  # noqa: E731
    with Robot(make, tasks={}, agent=lambda: mcts.MCTSAgent(20, depth=50), seed=0) as robot:
        robot.run(3)
        assert not robot.agents[0].tree.found().q.any() and list(robot.recent_returns) == [0.0]


@pytest.mark.parametrize("kind", [Cloning, Corridor])
def test_of_one_environment_search_has_a_copy(kind):
    """The robot is given no factory; search must not act in the environment itself."""
    with Robot(kind(), tasks={}, agent=lambda: mcts.MCTSAgent(60, depth=20, gamma=0.9), seed=0) as robot:
        robot.run(4)
        assert list(robot.recent_returns) == [1.0]


class Locked(Corridor):
    def __init__(self):
        self.lock = threading.Lock()


class OldStep(Corridor):
    def step(self, action):
        return super().step(action)[:4]


class Worthless(Corridor):
    def step(self, action):
        at, _, *rest = super().step(action)
        return at, float("nan"), *rest


@pytest.mark.parametrize(("kind", "message"), [
    (Locked, r"cannot be copied \(TypeError: cannot pickle.*write its clone_state\(\) and restore_state\(state\), see docs/own"),
    (OldStep, r"step must return \(observation, reward, terminated, truncated, info\), not 4 values"),
    (Worthless, "the reward is nan; expected a finite number")])
def test_environments_that_cannot_be_searched_are_told_of(kind, message):
    def run():
        with Robot(kind, tasks={}, agent=lambda: mcts.MCTSAgent(5, depth=2)) as robot:
            robot.run(2)

    with pytest.raises(Exception, match=message):
        run()


def test_what_is_refused():
    with pytest.raises(TypeError, match="MCTSAgent is for Discrete actions"):
        Robot("Pendulum-v1", tasks={}, agent=mcts.MCTSAgent)
    with pytest.raises(ValueError, match="simulations is 0"):
        mcts.MCTSAgent(0)
    with pytest.raises(ConfigError, match="no single environment of one player"):
        mcts.build(configs.resolve(mcts.Config, {"env": {"id": "CartPole-v1", "vector": 2}}, {}))

"""Search with the true environment: shortest ways, environments that cannot clone their state, and what is refused."""

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
        agent.best()
        assert (np.array(agent.env.unwrapped.state) == before).all()


def test_what_is_refused():
    with pytest.raises(TypeError, match="MCTSAgent is for Discrete actions"):
        Robot("Pendulum-v1", tasks={}, agent=mcts.MCTSAgent)
    with pytest.raises(ValueError, match="simulations is 0"):
        mcts.MCTSAgent(0)
    with pytest.raises(ConfigError, match="no single environment of one player"):
        mcts.build(configs.resolve(mcts.Config, {"env": {"id": "CartPole-v1", "vector": 2}}, {}))

"""AgentMaker: agents of a pool, each with an environment of its own and a helper for every task."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium.vector import VectorEnv

from parl_like.agents.agent import Agent
from parl_like.environment.factory import is_made, make_one, note_of
from parl_like.environment.players_face import PlayersFace
from parl_like.interfaces import PoolPort
from parl_like.run.helper_maker import HelperMaker
from parl_like.values.errors import nearest


class AgentMaker:
    """Makes the agents of a pool.

    Args:
        pool: To which they belong.

    Attributes:
        notes: What environments say of themselves, see `note_of`.
    """

    def __init__(self, pool: PoolPort, helpers: HelperMaker, agents: list[Agent]) -> None:
        self._pool, self._helpers, self._agents, self._options = pool, helpers, agents, helpers.options
        self.notes: list[str] = []
        self._n_envs = 0  # of all agents so far

    def new_seeds(self, n: int) -> list[tuple[int, np.random.SeedSequence]]:
        """Return index and seed of each of `n` new agents."""
        return list(enumerate(self._options.seed.spawn(n), self._agents[-1].index + 1 if self._agents else 0))

    def make(self, n: int) -> list[Agent]:
        """Make `n` agents with environments and, for every task, helpers. They are not in the pool's list yet."""
        seeds = self.new_seeds(n)
        new = [self._make_one(index, seed) for index, seed in seeds]
        for name in self._helpers.tasks:
            self._helpers.make(name, new, [seed.spawn(1)[0] for _, seed in seeds])
        return new

    def make_example(self) -> Agent:
        """Make an agent that is closed already, for drivers whose agents are made elsewhere: making it tells the wrappers what
        the agents will ask, and finds a mistake before a process is started.

        Raises:
            ValueError: the environment is made already, or a transform keeps statistics, which are one process's alone.
        """
        if is_made(self._options.env):
            raise ValueError("Robot: an environment itself cannot go to a worker process; "
                             f"driver={self._pool.driver_name!r} needs a factory (`lambda: gym.make(...)`) or an id")
        like = self._make_one(-1, np.random.SeedSequence(0))
        for name in self._helpers.tasks:
            self._helpers.make(name, [like], [np.random.SeedSequence(0)], stores=False)
            if self._helpers.transforms[name].state_dict():
                raise ValueError(f"Robot: the transforms of task {name!r} keep statistics, and each worker process would count "
                                 "its own; put the environments alone into processes, env=lambda: make_vector_env(ID, 8, "
                                 "'process') with agent=VectorAgent and driver='cooperative', or use driver='threads'")
        for helper in like.helpers.values():
            helper.comm.close()
        if like.env is not None:
            like.env.close()
        return like

    def _make_one(self, index: int, seed: np.random.SeedSequence) -> Agent:
        agent = self._options.agent()
        if not isinstance(agent, Agent):
            raise TypeError(f"Robot: agent() gave {type(agent).__name__}; expected an Agent")
        _refuse_misspelt(type(agent))
        if hasattr(agent, "robot"):
            raise ValueError(f"Robot: agent() gave one {type(agent).__name__} several times; expected a new one at every call, "
                             "such as its class")
        agent.bind(self._pool, index, np.random.default_rng(seed), self._options.label)
        if self._options.env is not None:
            agent.join(partial(make_one, self._options.env))
            if isinstance(vector := agent.env.unwrapped, VectorEnv) and type(agent).run_one_episode is Agent.run_one_episode:
                raise TypeError(f"Robot: the environment is a vector of {vector.num_envs}, and {type(agent).__name__} acts in "
                                "one; give agent=VectorAgent, or a function that makes a single environment, and n_agents=")
            agent.check_roles(list(self._helpers.tasks))
            if isinstance(agent.env, PlayersFace):
                self._pool.statistics.players = agent.env.players
            if (note := note_of(agent.env)) and note not in self.notes:
                self.notes.append(note)
        agent.first_env = self.first_env(agent)
        return agent

    def first_env(self, agent: Agent) -> int:
        """Return the number of a new agent's first environment: agents may have different numbers of them."""
        first, self._n_envs = self._n_envs, self._n_envs + agent.n_envs
        return first


def _refuse_misspelt(kind: type[Agent]) -> None:
    """Raise TypeError for an agent of the user's whose episode has a name that nobody calls, so that ours would run instead."""
    if kind.run_one_episode.__module__.partition(".")[0] == "parl_like":
        users = [base for base in kind.__mro__[:-1] if base.__module__.partition(".")[0] != "parl_like"]
        if near := nearest("run_one_episode", [name for base in users for name in vars(base)], 0.8):
            raise TypeError(f"{kind.__name__}.{near} is called by nobody; did you mean 'run_one_episode'? A method that is "
                            "another needs a name less like it")

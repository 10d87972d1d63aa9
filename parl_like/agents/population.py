"""PopulationHelper: episodes that evaluate the candidates of a search among parameters."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_checks import bad_reward
from parl_like.agents.helper_context import HelperContext
from parl_like.interfaces import ActingAgent
from parl_like.learning.explorers import Candidates
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array


class PopulationHelper(AgentHelper):
    """Evaluates candidates: of each generation every one for `episodes` episodes, which are divided over all agents.

    Agent i of n takes episodes i, i + n, i + 2n … of a generation's `population` · `episodes`, sends their returns, and waits for
    those of the others: an update has all of them, as rows of `candidate`, `episode` (of how many `episodes`) and `score`. The
    k-th episode of all candidates begins with the same seed of the environment, a function of the robot's seed, the generation
    and k; so candidates are compared under the same conditions, and what is found does not depend on the number of agents. An
    episode that a checkpoint interrupts is evaluated anew. So is one with steps that `Robot.collect` has taken: a collection
    evaluates nobody, and leaves the search as it was.

    For algorithms with a `population` and `Candidates` as their explorer (`parl_like.algorithms.evolution`), in sync mode, with
    one environment per agent.

    Args:
        episodes: Per candidate and generation.
        The others: As for `AgentHelper`.

    Raises:
        ValueError: episodes is below 1.
    """

    learns = sends_returns = True

    def __init__(self, *, episodes: int = 1, **options: Any) -> None:
        super().__init__(**options)
        if episodes < 1:
            raise ValueError(f"PopulationHelper: episodes is {episodes}; expected at least 1")
        self.episodes = episodes
        self._scores: list[float] = []  # of this agent's episodes of the generation, in their order
        self._score = 0.0  # of the open one, so far
        self._counts = False  # whether the open one evaluates a candidate

    def bind(self, context: HelperContext) -> None:
        """Join the helper to its agent and task; called once, by the robot.

        Raises:
            ValueError: the algorithm has no candidates, the agent several environments, or learning does not wait.
        """
        super().bind(context)
        learned: Any = self.task.algorithm
        for wrong, there, mend in (
            (not isinstance(self.explorer, Candidates), type(self.explorer).__name__, "take an algorithm such as ES, CEM or ARS"),
            (context.agent.vector, "a vector environment", "give each agent one environment"),
            (not self.wait, "mode 'async'", "use mode='sync'"),
            (context.role is not None, "one of several players", "give an environment of one, such as AECPlayer"),
        ):
            if wrong:
                raise ValueError(f"{self.where}: PopulationHelper evaluates a candidate of a population in each episode, and "
                                 f"there is {there}; {mend}")
        self.population = int(learned.population)
        self._base = context.agent.agent_pool.common_seed
        self._evaluates = self.mode != "test" and self.task.train

    def episode_seed(self) -> int | None:
        """Return the seed of the next episode; before, send what a generation has brought, once all its episodes are over.

        Raises:
            ValueError: there are more agents than episodes of a generation.
        """
        if not self._evaluates or self.collecting:
            return None
        if self._number() >= self.population * self.episodes:
            if not self._scores:
                raise ValueError(f"{self.where}: {self.agent.agent_pool.n_agents} agents share {self.population} candidates of "
                                 f"{self.episodes} episodes; expected an episode for each agent at least")
            numbers = self._number(np.arange(len(self._scores)))
            rows = {"candidate": numbers // self.episodes, "episode": numbers % self.episodes,
                    "episodes": np.full(len(numbers), self.episodes), "score": np.array(self._scores)}
            while not self.sender.send(rows):  # nothing was learned, for others are still at theirs
                if self.collecting:
                    return None
                if self.agent.signal is None:
                    raise ValueError(f"{self.where}: an update had the returns of only some of {self.population * self.episodes} "
                                     "episodes; let all agents learn together, so set no training_rule")
                self.agent.obey()
            self._scores.clear()  # not before it is answered: an interruption may come first
        # Buffers have spawn keys from 1,000,000 on, workers from 2,000,000 on; these are of no other generator.
        key = self.task.learns, self._number() % self.episodes
        return int(np.random.SeedSequence(self._base, spawn_key=(3_000_000, *key)).generate_state(1)[0] >> 1)

    def _number(self, k: Any = None) -> Any:
        """Which of the generation's episodes this agent's k-th is; None: its next."""
        return self.agent.index + (len(self._scores) if k is None else k) * self.agent.agent_pool.n_agents

    def pre_episode(self, agent: ActingAgent) -> None:
        """Stage PRE_EPISODE: the explorer takes the parameters of the episode's candidate."""
        super().pre_episode(agent)
        self._score, self._counts = 0.0, self._evaluates and not self.collecting
        if self._counts:
            self.explorer.memory[:] = self._number() // self.episodes  # type: ignore[union-attr]

    def store(
        self, obs: object, act: object, rew: Any, obs_next: object, terminated: object, truncated: object,
        info: Mapping[str, object] | None = None, mask: Array | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:
        """Add the reward to the episode's return. Nothing else is kept.

        Raises:
            SpecError: the reward is not finite.
        """
        if not self._evaluates:
            return
        if not isfinite(rew):
            raise bad_reward(self.where, rew)
        self.acting.steps += 1
        self._score += float(rew)
        if self.collecting:
            self._counts = False
        elif (terminated or truncated) and self._counts:
            self._scores.append(self._score)

    def interrupt(self, rows: Array | None = None) -> None:
        """Forget the return of the open episode, which is evaluated anew."""
        super().interrupt(rows)
        self._score = 0.0

    def state_dict(self) -> State:
        """Return the state of an `AgentHelper`, the generation's returns so far, and the seed that all agents share."""
        return {**super().state_dict(), "scores": list(self._scores), "base": self._base}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `AgentHelper.load_state_dict`."""
        super().load_state_dict(state)
        self._scores = [plain.number(score) for score in plain.listed(state["scores"])]
        self._base, self._score = plain.whole(state["base"]), 0.0

"""EpisodicHelper: learns from whole episodes, each once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array


class EpisodicHelper(OnPolicyHelper):
    """Learns from whole episodes: whenever `episodes` of them have ended, or when an environment has `max_steps` rows waiting.

    Of a vector environment, rows of episodes that are still open wait for the next time. Roles learn when the last of them has
    ended its episode.

    Args:
        episodes: Episodes of this agent, all its environments together, per training request.
        max_steps: Rows that one environment can hold; a longer wait is cut there and bootstrapped.

    Raises:
        ValueError: `episodes` or `max_steps` is below 1.
    """

    _nothing = "no episode has ended since the last learning"
    sends_episodes = True

    given_on = ("unroll",)

    def __init__(self, *, episodes: int = 1, max_steps: int = 1000, **options: object) -> None:
        super().__init__(unroll=max_steps, **options)
        if episodes < 1:
            raise ValueError(f"{type(self).__name__}: episodes is {episodes}; expected at least 1")
        self.episodes = episodes
        self._ended = 0
        self._open = False  # the newest row does not end an episode

    def _after_store(self, rows: int, ended: int) -> None:
        self._ended += ended
        self._open = not ended
        super()._after_store(rows, ended)
        if (ended or self._ended >= self.episodes) and not self.collecting and self._all_have_ended():
            self._learn()

    def _all_have_ended(self) -> bool:
        """Return whether enough episodes are over, and no other role of the agent is in the middle of one."""
        others = [other for other in self._other_roles() if isinstance(other, EpisodicHelper)]
        return max(one._ended for one in (self, *others)) >= self.episodes and not any(other._open for other in others)

    def interrupt(self, rows: Array | None = None) -> None:
        """End the open episodes here; see `AgentHelper.interrupt`."""
        super().interrupt(rows)
        self._open = False

    def _to_take(self, rows: Mapping[str, Array]) -> int:
        n = len(rows["rew"])
        if self._unrolled >= self.unroll:
            return n
        ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
        return int(ends[-1]) + 1 if len(ends) else 0

    def _forget(self) -> None:
        super()._forget()
        self._ended = 0

    def state_dict(self) -> State:
        """Return the state of an `OnPolicyHelper`, and how many episodes have ended since the last learning."""
        return {**super().state_dict(), "ended": self._ended}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `OnPolicyHelper.load_state_dict`."""
        super().load_state_dict(state)
        self._ended = plain.whole(state["ended"])

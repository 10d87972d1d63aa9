"""ReservoirHelper: learns from an even sample of everything that was ever stored, as an average of policies does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_context import HelperContext
from parl_like.data.buffers.fields import is_part
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array


class ReservoirHelper(AgentHelper):
    """Keeps observations and actions in a `ReservoirBuffer` of its own agent, each row of any time with the same probability, and
    learns from random ones of them.

    For what says how something was done on average so far, such as the average policy of NFSP (`parl_like.robots.nfsp`): the
    algorithm reads `obs` and `act` alone, as `BC` does. Not for agents with a vector environment.

    Args:
        size: Rows that are kept for each agent.
        batch_size: Rows of one training request, which is one learning batch.
        learn_every: Rows stored by this helper between two requests.
        warmup: Rows that it keeps before the first request; at least `batch_size`.
        The others: As for `AgentHelper`.

    Raises:
        ValueError: a number is below 1, or learning could never begin.
    """

    learns = True

    def __init__(self, *, size: int = 100_000, batch_size: int = 64, learn_every: int = 4, warmup: int = 0,
                 **options: Any) -> None:
        super().__init__(**options)
        for name, value in (("size", size), ("batch_size", batch_size), ("learn_every", learn_every)):
            if value < 1:
                raise ValueError(f"ReservoirHelper: {name} is {value}; expected at least 1")
        if max(warmup, batch_size) > size:
            raise ValueError(f"ReservoirHelper: warmup ({warmup}) or batch_size ({batch_size}) is above size ({size}); learning "
                             "could never begin")
        self.size, self.batch_size, self.learn_every, self.warmup = size, batch_size, learn_every, max(warmup, batch_size)
        self._since = 0

    def training_rule(self) -> BatchRule:
        return BatchRule(max_rows=self.batch_size)

    def bind(self, context: HelperContext) -> None:
        super().bind(context)
        if context.agent.vector:
            raise ValueError(f"{self.where}: ReservoirHelper stores single rows, and there is a vector environment; give each "
                             "agent one environment")
        self.reservoir = ReservoirBuffer(self.size, self.rng)
        kept = [spec for spec in self.writer.columns() if is_part(spec.name, "obs") or is_part(spec.name, "act")]
        self.reservoir.allocate(kept)

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any,
        info: Mapping[str, object] | None = None, mask: Array | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:
        """Sees one row, and learns when the schedule says so. What else a step has may be given, and is not kept.

        Raises:
            SpecError: a value does not fit its field; nothing was stored.
        """
        if self.mode == "test" or not self.task.train:
            return
        head = (obs,) if self.format.plain else self.format.flat(obs, self.format.raw_names)
        self.reservoir.push((*head, *((act,) if self.writer.unmapped else self.writer.policy_units(act))))
        self.acting.steps += 1
        self._since += 1
        if self._since >= self.learn_every and not self.collecting and self.ready():
            self._since = 0
            self._learn()

    def ready(self) -> bool:
        return len(self.reservoir) >= self.warmup

    def due(self) -> bool:
        return False  # an update takes what this agent alone has sent

    def _learn(self) -> dict[str, object] | None:
        return self.sender.send(self.reservoir.take(self.rng.integers(len(self.reservoir), size=self.batch_size)))

    def state_dict(self) -> State:
        return {**super().state_dict(), "since": self._since, "reservoir": self.reservoir.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._since = plain.whole(state["since"])
        self.reservoir.load_state_dict(plain.entries(state["reservoir"]))


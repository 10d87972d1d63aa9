"""WarmStartHelper: learns from recorded rows before its agents act, and then from those and theirs together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.offline import check_recorded, recorded_rows
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.source import RECORDED, source_of
from parl_like.interfaces import UsersAgent
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class WarmStartHelper(OffPolicyHelper):
    """An `OffPolicyHelper` for learning offline and online in one run: its task first does `offline_updates` updates from
    recorded rows, and then those of any `OffPolicyHelper`, each from rows of both, in a fixed share (Ball et al. 2023). So the
    policy that begins to act is what the data has taught, and what it meets is learned from beside that.

    Args:
        data: As for `OfflineHelper`.
        offline_updates: Of all agents of the task together, before the first of them acts.
        share: Of the rows of each later request, how many are recorded ones; 0.5 as published.
        options: As for `OffPolicyHelper`.

    Raises:
        ValueError: the data has fewer rows than `batch_size`. ArchiveError: the directory is damaged.
    """

    def __init__(self, data: ReplayBuffer | str, *, offline_updates: int = 10_000, share: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.data = recorded_rows(data, self.batch_size, type(self).__name__)
        self.offline_updates, self.share = offline_updates, share
        self._done = 0  # of this helper's part of these updates

    def _check_window(self) -> None:
        super()._check_window()
        if self.window.rows > 1:
            raise ValueError(f"{self.where}: {type(self.task.algorithm).__name__} looks at {self.window.rows} rows at a time, "
                             "recorded ones are read one by one here; give n_step=1")

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """Return the buffer of the agents' own rows. Raises ValueError for a prioritised one."""
        buffer = super().make_buffer(n_lanes, rng)
        if isinstance(buffer, PrioritizedReplayBuffer):
            raise ValueError(f"{type(self).__name__}: recorded rows have no priorities; use a ReplayBuffer")
        return buffer

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Declare the columns of the agents' rows, and check that the recorded ones have them."""
        super().allocate(buffer, specs)
        check_recorded(self.data, specs)

    @cached_property
    def _recorded(self) -> ReplayBuffer:
        """The data, with the policy's actions."""
        return self.data.in_policy_units(self.model.act_space)

    def pre_episode(self, agent: UsersAgent) -> None:
        """Stage PRE_EPISODE, and before the first of them the updates from recorded rows."""
        if self.mode != "test" and not self.collecting and self.buffer is not None:
            share = -(-self.offline_updates * len(self.lanes) // self.buffer.n_lanes)
            while self._done < share:
                self._done += 1
                self.sender.by_hand = True
                try:
                    self.sender.send(self._of_data(self.batch_size))
                finally:
                    self.sender.by_hand = False
        super().pre_episode(agent)

    def _of_data(self, n: int) -> dict[str, Array]:
        """Return n random rows of the data, flat field name → [n, ...], as `rows_at` gives rows."""
        assert self.buffer is not None
        wanted = {spec.name for spec in self.buffer.specs}
        indices = self._recorded.sample_indices(n, self.rng)
        rows = {name: column for name, column in self._recorded.gather(indices).items() if name in wanted}
        return self.writer.replayed(rows, indices, indices, buffer=self._recorded)

    def draw(self, n: int) -> tuple[dict[str, Array], Callable[[Mapping[str, object]], None] | None]:
        """Return `n` random rows, the recorded ones first, as `OffPolicyHelper.draw` does."""
        of_data = round(n * self.share)
        if not of_data:
            return super().draw(n)
        rows = self._of_data(of_data)
        if of_data == n:
            return rows, None
        own, _ = self.sample(n - of_data)
        return {name: np.concatenate([column, own[name]]) for name, column in rows.items()}, None

    def state_dict(self) -> State:
        """Return the state of an `OffPolicyHelper`, how many updates from recorded rows are done, and which rows those are."""
        source = source_of(self.data)
        return {**super().state_dict(), "offline": self._done, **({} if source is None else {RECORDED: source.state_dict()})}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `AgentHelper.load_state_dict`, and ValueError for other recorded rows."""
        if RECORDED in state and (source := source_of(self.data)) is not None:
            source.check(plain.entries(state[RECORDED]), self.where)
        super().load_state_dict(state)
        self._done = plain.whole(state.get("offline", 0))

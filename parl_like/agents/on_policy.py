"""OnPolicyHelper: learns from unrolls of its agent's own rows, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.agents.helper import AgentHelper
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.learning.fixed_settings import fixed
from parl_like.values import plain
from parl_like.values.errors import NotEnoughRows
from parl_like.values.plain import State
from parl_like.values.spec import Array


class OnPolicyHelper(AgentHelper):
    """Learns from the rows since the last time, once, and forgets them.

    Where learning waits, rows that more than one update of the task has made old are dropped unlearned, unless they carry the
    log-probability they were taken with (`store_policy`). That can only happen when agents of one robot learn at different times,
    such as those whose task of another rhythm makes them wait for its updates. So the log-probability is stored by default where
    the robot has several tasks that may learn, where learning does not wait (mode 'async'), and where replicas predict with
    parameters of before (`sync_every` above 1). A robot that drops more than 5 % of a task's rows says so.

    The roles that an agent has at a task learn together: with the rows of the first whose unroll is full go those of the others.

    Args:
        unroll: Steps of this agent (of each of its environments, or roles) between two training requests.
        The others: As for `AgentHelper`.

    Attributes:
        dropped: Rows dropped as too old.

    Raises:
        ValueError: unroll is no whole number of at least 1.
    """

    learns = True
    acts_in_step = True
    unroll: int = fixed("the task's buffer holds so many rows; build the helper with another")
    _nothing = "nothing was stored since the last learning"

    def __init__(self, *, unroll: int = 32, **options: Any) -> None:
        super().__init__(**options)
        if unroll < 1 or unroll != int(unroll):
            raise ValueError(f"{type(self).__name__}: unroll is {unroll}; expected a whole number of at least 1")
        self.unroll = unroll
        self.dropped = 0
        self._unrolled = 0
        # Lane → rows at its front that were learned from, and are kept for the frames of later ones.
        self._context: dict[int, int] = {}
        self._learns = 0  # the task's updates when the newest row was stored
        self._renewed = 0, 0  # values of `_unrolled` at which the task was found updated, the last two times

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        # One more: what was collected may fill the unroll already.
        """Return a buffer with `unroll` rows, and those that frames look back to, for each of `n_lanes` environments."""
        return ReplayBuffer((self.unroll + 1 + self.transforms.behind) * n_lanes, n_lanes, rng)

    def _check_window(self) -> None:
        if self.window.n_step > 1 or self.window.rows > 1:
            raise ValueError(f"{self.where}: {type(self.task.algorithm).__name__} asks for {self.window}, "
                             f"{type(self).__name__} sends whole segments; use OffPolicyHelper")
        if self.window.in_order is False:
            raise ValueError(f"{self.where}: {type(self.task.algorithm).__name__} learns from random rows of all that is "
                             "remembered "
                             f"(off-policy), {type(self).__name__} sends the newest in order, once; use OffPolicyHelper")

    def _check_buffer(self, buffer: ReplayBuffer) -> None:
        super()._check_buffer(buffer)
        if buffer.lane_size < self.unroll + self.transforms.behind:
            raise ValueError(f"{self.where}: unroll is {self.unroll}, but the task's first helper made a buffer with lanes of "
                             f"{buffer.lane_size} rows; give all helpers of the task the same unroll, or the first the largest")

    def learns_late(self) -> bool:
        """Return whether an update may come between an action and its own: where learning does not wait, where several tasks
        learn, and where replicas predict with parameters of before."""
        pool, task = self.agent.agent_pool, self.task
        learners = sum(other.train and other.helper is not None for other in pool.tasks.values())
        lags = pool.remote and task.serve == "replica" and task.sync_every > 1
        return not self.wait or learners > 1 or lags

    def _after_store(self, rows: int, ended: int) -> None:
        learns = self.context.task.learns
        if learns != self._learns:
            self._learns = learns
            self._renewed = self._renewed[1], self._unrolled
        self._unrolled += 1
        if not self.acting.collecting:
            if self._unrolled >= self.unroll:
                self._learn()
        elif self._unrolled > self.unroll:
            raise ValueError(f"{self.where}: collected more than {self.unroll} steps, all that this helper holds; "
                             "give it a larger unroll (max_steps), or call update() in between")

    def _learn(self) -> dict[str, object] | None:
        self.comm.check_caller()  # before any row is taken
        # An agent that waits does not overwrite its rows, and those of several agents are joined, so copied, anyway.
        copy = not self.wait or len(self.agent.agent_pool.agents) == 1
        parts = [self.take(copy), *(other.take(False) for other in self._other_roles() if other.ready())]
        rows = parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return self.sender.send(rows)

    def _other_roles(self) -> list[OnPolicyHelper]:
        """Return the helpers of the agent's other roles at this task, which learn with this one: else each would make the rows of
        the others old."""
        if self.role is None:
            return []
        return [helper for helper in self.context.agent.helpers.values()
                if helper is not self and helper.name == self.name and isinstance(helper, OnPolicyHelper)]

    def take(self, copy: bool = True) -> dict[str, Array]:
        """Return all rows since the last call, flat field name → [n, ...], in time order per environment, with `last` bool [n]
        marking every cut; the buffer forgets them.

        Args:
            copy: Without it perhaps views of the buffer, which the next `store` overwrites.

        Raises:
            NotEnoughRows: there are none.
        """
        found = self._segments()
        dropped = sum(stale for _, _, stale in found)
        self.dropped += dropped
        self.agent.agent_pool.statistics.count_rows(self.name, sum(len(at) for at, _, _ in found), dropped)
        if not any(len(at) for at, _, _ in found):
            raise NotEnoughRows(f"{self.where}: {self._nothing}; store more steps before learning")
        assert self.buffer is not None
        if self.acting.changes:
            self.acting.prepare()
        with self.buffer.lock:
            segments = [self.writer.replayed(rows, at, at) for at, rows, _ in found if len(at)]
        for segment in segments:
            segment["last"] = segment["terminated"] | segment["truncated"]
            segment["last"][-1] = True
        # The lanes are overwritten while an asynchronous request waits, and rows that are kept move to their front.
        copy = copy or len(segments) > 1 or self._keeps
        out = {name: np.concatenate([s[name] for s in segments]) for name in segments[0]} if copy else segments[0]
        self._forget()
        if self.writer.policy and not self.store_policy:
            del out["policy.log_prob"]
        return out

    def due(self) -> bool:
        """Return whether rows were stored since the last update."""
        return self._unrolled > 0

    def ready(self) -> bool:
        """Return whether there are rows to learn from that are not too old."""
        return any(len(at) for at, _, _ in self._segments())

    def _segments(self) -> list[tuple[Array, dict[str, Array], int]]:
        """Return what would be learned from now, per environment: positions, raw rows, perhaps views of the buffer, and how many
        were too old."""
        buffer = self.buffer
        old = self._renewed[0] if self.wait and not self.store_policy else 0
        found = []
        for lane in self.lanes if buffer is not None else ():
            assert buffer is not None
            rows = buffer.lane_rows(lane)
            begin, end = self._context.get(lane, 0), self._to_take(rows)
            stale = min(max(len(rows["rew"]) - (self._unrolled - old) - begin, 0), max(end - begin, 0)) if old else 0
            if end > begin:
                part = slice(begin + stale, end)
                found.append((buffer.lane_positions(lane)[part], {name: column[part] for name, column in rows.items()}, stale))
        return found

    def _to_take(self, rows: Mapping[str, Array]) -> int:
        """Return how many rows of a lane are learned from now."""
        return len(rows["rew"])

    def _forget(self) -> None:
        """Drops the rows that were taken, but for those of an open episode that the frames of later ones look back to."""
        buffer, behind = self.buffer, self.transforms.behind
        assert buffer is not None
        unrolled = 0
        for lane in self.lanes:
            kept: list[Array] = []
            if self._keeps:
                rows = buffer.lane_rows(lane)
                n = self._to_take(rows)
                ends = np.flatnonzero(rows["terminated"][:n] | rows["truncated"][:n])
                self._context[lane] = learned = min(behind, n - (int(ends[-1]) + 1 if len(ends) else 0))
                kept = [column[n - learned :].copy() for column in rows.values()]
            buffer.clear_lane(lane)
            if kept and len(kept[0]):
                buffer.push_rows([lane] * len(kept[0]), kept)
                unrolled = max(unrolled, len(kept[0]) - learned)
        self._unrolled, self._renewed = unrolled, (0, 0)

    @property
    def _keeps(self) -> bool:
        """Return whether rows stay when others are dropped."""
        return self.sends_episodes or self.transforms.behind > 0

    def state_dict(self) -> State:
        """Return the state of an `AgentHelper`, and the counts of rows since the last update, of updates, and of dropped rows."""
        return {**super().state_dict(), "store_policy": self.store_policy, "unrolled": self._unrolled, "learns": self._learns,
                "renewed": list(self._renewed), "dropped": self.dropped,
                "context": {str(lane): rows for lane, rows in self._context.items()}}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave.

        Raises:
            ValueError: the counts of rows cannot be.
        """
        super().load_state_dict(state)
        kept = state.get("store_policy", self.store_policy)
        self.options.store_policy = kept if isinstance(kept, bool) else None
        self._unrolled, self._learns, self.dropped = (plain.whole(state[key]) for key in ("unrolled", "learns", "dropped"))
        *_, before, last = 0, 0, *plain.wholes(state["renewed"])
        self._renewed = before, last
        if not self._renewed[0] <= self._renewed[1] <= self._unrolled:
            raise ValueError(f"{self.where}: renewed is {state['renewed']}; expected two rising counts, at most the "
                             f"{self._unrolled} rows of the unroll")
        self._context = {int(lane): plain.whole(rows) for lane, rows in plain.entries(state.get("context", {})).items()}

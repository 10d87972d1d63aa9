"""When a helper learns, and from which rows: OffPolicyHelper, OfflineHelper, OnPolicyHelper, EpisodicHelper."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from parl_like.agent_helper import AgentHelper
from parl_like.computation_task import BatchRule
from parl_like.data.prioritized import PrioritizedReplayBuffer
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.errors import NotEnoughRows
from parl_like.helper_checks import made_buffer
from parl_like.row_format import MARKS
from parl_like.settings import fixed
from parl_like.spec import Array, Spec


class OffPolicyHelper(AgentHelper):
    """Learns from random rows of everything that is remembered.

    Args:
        size: Rows that the buffer holds, all agents of the task together.
        buffer: What makes the buffer, from its size, lanes and generator: `ReplayBuffer`, or with other options
            `partial(ReplayBuffer, ignore_obs_next=True)`, `partial(PrioritizedReplayBuffer, alpha=0.6)`. A
            prioritised one is told the `priority` [N] ≥ 0 of each row, which the algorithm's `learn` must return.
        batch_size: Rows of one training request, which is one learning batch.
        learn_every: Rows stored by this helper between two requests; so many agents learn as often per step as one. None: only
            when the agent calls `learn()`.
        updates: Requests sent each time.
        warmup: Rows in the buffer before the first request; at least `batch_size`.
        random_steps: Of the first so many steps, of all agents together (of each worker process), actions are drawn evenly from
            the action space, legal ones where the observation has a `mask`. Each environment takes an equal share, rounded up.
        The others: As for `AgentHelper`.
    """

    learns = True
    size: int = fixed("the task's buffer has been made; build the helper with another")
    random_steps: int = fixed("the steps of its agents were counted out; assign `random_until`, or build the helper with another")

    def __init__(
        self, *, size: int = 100_000, batch_size: int = 64, learn_every: int | None = 4, updates: int = 1, warmup: int = 0,
        random_steps: int = 0,
        buffer: Callable[[int, int, np.random.Generator], ReplayBuffer] = ReplayBuffer, **options: Any,
    ) -> None:
        super().__init__(**options)
        self._make = buffer
        for name, value in (("size", size), ("batch_size", batch_size), ("learn_every", learn_every), ("updates", updates)):
            if value is not None and value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        if warmup > size or batch_size > size:
            raise ValueError(f"{type(self).__name__}: warmup ({warmup}) or batch_size ({batch_size}) is above size ({size}); "
                             "learning could never begin")
        self.size, self.batch_size, self.learn_every, self.updates = size, batch_size, learn_every, updates
        if random_steps < 0:
            raise ValueError(f"{type(self).__name__}: random_steps is {random_steps}; expected at least 0")
        self.warmup, self.random_steps = max(warmup, batch_size), random_steps
        self._since = 0

    def training_rule(self) -> BatchRule:
        return BatchRule(max_rows=self.batch_size)

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return made_buffer(self, self._make, n_lanes, rng)

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        super().allocate(buffer, specs)
        # So many rows, wherever they lie, have one that a whole sequence follows.
        self.warmup = max(self.warmup, self.window.sequence * buffer.n_lanes)
        self.random_until = self._random_steps = -(-self.random_steps // buffer.n_lanes) * len(self.lanes)

    def _check_window(self) -> None:
        if self.window.in_order:
            raise ValueError(f"{self.where}: {type(self.task.algorithm).__name__} learns from rows in order (in_order), "
                             f"{type(self).__name__} sends random ones; use OnPolicyHelper or EpisodicHelper")
        if self.mode != "test" and not getattr(self.task.algorithm, "takes_priorities", True):
            # Where agents are in other processes their buffer is not here; one like it tells before these are started.
            buffer = self.make_buffer(len(self.lanes), np.random.default_rng(0)) if self.buffer is None else self.buffer
            if isinstance(buffer, PrioritizedReplayBuffer):
                raise ValueError(f"{self.where}: {type(self.task.algorithm).__name__} has no priorities for its rows; use a "
                                 "ReplayBuffer")

    def _after_store(self, rows: int, ended: int) -> None:
        if self._collecting or self.learn_every is None:
            return  # not counted either, or the first step after a long collection would send hundreds of requests
        due, self._since = divmod(self._since + rows, self.learn_every)
        if due and self.ready():
            self._at_once = due * self.updates  # an agent that does not wait for lessons is those of one step ahead
            for _ in range(self._at_once):
                self._learn()

    def ready(self) -> bool:
        """Whether the warmup is over; of agents that step together all say the same, so that none learns while others act."""
        buffer = self.buffer
        if buffer is None or (rows := len(buffer)) < self.batch_size:
            return False
        lanes = buffer.n_lanes
        # With full lanes of its own an agent waits for nobody: lanes of agents that have left may never fill.
        return (rows - 1) // lanes * lanes + 1 >= self.warmup or all(buffer.is_full(lane) for lane in self.lanes)

    def due(self) -> bool:
        return self._since > 0

    def _learn(self) -> dict[str, Any] | None:
        return self._send(*self.lesson(self.batch_size))

    def lesson(self, n: int) -> tuple[dict[str, Array], Callable[[Mapping[str, Any]], None] | None]:
        """`n` random rows to learn from, and what is to be called with the training return, if anything."""
        buffer = self.buffer
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return self.sample(n)[0], None
        with buffer.lock:  # the serials of the rows that were drawn, not of those that came since
            rows, indices = self.sample(n)
            return rows, partial(self._feed_back, indices, buffer.serials(indices))

    def _feed_back(self, indices: Array, serials: Array, result: Mapping[str, Any]) -> None:
        assert isinstance(self.buffer, PrioritizedReplayBuffer)
        if "priority" not in result:
            if "left_out" in result:
                return  # a step that failed before they were known
            raise ValueError(f"{self.where}: a prioritised buffer needs a `priority` for each row; learn of "
                             f"{type(self.task.algorithm).__name__} returned {', '.join(result)}")
        self.buffer.update_weight(indices, result["priority"], serials)

    def sample(self, n: int) -> tuple[dict[str, Array], Array]:
        """`n` random rows with what the algorithm's window asks for, flat field name → array, and their positions in the buffer.

        Raises:
            NotEnoughRows: the buffer has fewer.
        """
        have = 0 if self.buffer is None else len(self.buffer)
        if self.buffer is None or have < n:
            raise NotEnoughRows(f"{self.where}: learning needs {n} rows, the buffer has {have}; "
                                "store more steps first, or lower batch_size")
        with self.buffer.lock:  # all columns of a row from one moment
            behind = max(self.transforms.behind, self.buffer.stack_num - 1)
            if behind:
                behind += self.window.burn_in  # frames of the rows before the drawn one count, too
            try:
                indices = self.buffer.sample_indices(n, self.rng, self.window.sequence - 1, behind)
            except ValueError as error:
                raise NotEnoughRows(f"{self.where}: {error}") from None
            return self.rows_at(indices), indices

    def rows_at(self, indices: Array) -> dict[str, Array]:
        """The rows at these positions of the buffer with what the algorithm's window asks for."""
        buffer, window = self.buffer, self.window
        assert buffer is not None
        if self._changes:
            self._prepare()
        if window.sequence > 1 or window.burn_in:
            positions, valid = buffer.sequences(indices, window.sequence, window.burn_in)
            flat = positions.ravel()
            rows = self._replayed(buffer.gather(flat), flat, flat, valid.ravel())
            out = {name: column.reshape(*positions.shape, *column.shape[1:]) for name, column in rows.items()}
            out |= {name: out[name][:, 0] for name in self._state_specs if name in out}
            if isinstance(buffer, PrioritizedReplayBuffer):
                out["weight"] = buffer.weights(indices)  # of the sequence
            return {**out, "valid": valid}
        if window.n_step == 1:
            return self._replayed(buffer.gather(indices), indices, indices)
        ahead = buffer.n_step(indices, window.n_step)
        last = ahead["last_index"]
        return self._replayed({**buffer.gather(indices, last), "rew": ahead["rew"], "valid": ahead["valid"]}, indices, last)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._since = state["since"]


class OnPolicyHelper(AgentHelper):
    """Learns from the rows since the last time, once, and forgets them.

    Where learning waits, rows that more than one update of the task has made old are dropped unlearned, unless they carry the
    log-probability they were taken with (`store_policy`). That can only happen when agents of one robot learn at different times,
    such as those whose task of another rhythm makes them wait for its updates. So the log-probability is stored by default where
    the robot has several tasks that may learn, where learning does not wait (mode 'async'), and where replicas predict with
    parameters of before (`sync_every` above 1). A robot that drops more than 5 % of a task's rows says so.

    Args:
        unroll: Steps of this agent (of each of its environments) between two training requests.
        The others: As for `AgentHelper`.

    Attributes:
        dropped: Rows dropped as too old.
    """

    learns = True
    acts_in_step = True
    unroll: int = fixed("the task's buffer holds so many rows; build the helper with another")
    _nothing = "nothing was stored since the last learning"
    _whole = False  # whether rows wait for the end of their episode

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

    def _learns_late(self) -> bool:
        robot, task = self.agent.robot, self.task
        learners = sum(other.train and other.helper is not None for other in robot.tasks.values())
        lags = robot.remote and task.serve == "replica" and task.sync_every > 1
        return not self.wait or learners > 1 or lags

    def _after_store(self, rows: int, ended: int) -> None:
        if self.task.learns != self._learns:
            self._learns = self.task.learns
            self._renewed = self._renewed[1], self._unrolled
        self._unrolled += 1
        if not self._collecting:
            if self._unrolled >= self.unroll:
                self._learn()
        elif self._unrolled > self.unroll:
            raise ValueError(f"{self.where}: collected more than {self.unroll} steps, all that this helper holds; "
                             "give it a larger unroll (max_steps), or call update() in between")

    def _learn(self) -> dict[str, Any] | None:
        self.comm.check_caller()  # before any row is taken
        # An agent that waits does not overwrite its rows, and those of several agents are joined, so copied, anyway.
        return self._send(self.take(copy=not self.wait or len(self.agent.robot.agents) == 1))

    def take(self, copy: bool = True) -> dict[str, Array]:
        """All rows since the last call, in time order per environment, with `last` marking every cut; the buffer forgets them.

        Args:
            copy: Without it perhaps views of the buffer, which the next `store` overwrites.

        Raises:
            NotEnoughRows: there are none.
        """
        found = self._segments()
        dropped = sum(stale for _, _, stale in found)
        self.dropped += dropped
        self.agent.robot.rows.count(self.name, sum(len(at) for at, _, _ in found), dropped)
        if not any(len(at) for at, _, _ in found):
            raise NotEnoughRows(f"{self.where}: {self._nothing}; store more steps before learning")
        assert self.buffer is not None
        if self._changes:
            self._prepare()
        with self.buffer.lock:
            segments = [self._replayed(rows, at, at) for at, rows, _ in found if len(at)]
        for segment in segments:
            segment["last"] = segment["terminated"] | segment["truncated"]
            segment["last"][-1] = True
        # The lanes are overwritten while an asynchronous request waits, and rows that are kept move to their front.
        copy = copy or len(segments) > 1 or self._keeps
        out = {name: np.concatenate([s[name] for s in segments]) for name in segments[0]} if copy else segments[0]
        self._forget()
        if self._keeps_policy and not self.store_policy:
            del out["policy.log_prob"]
        return out

    def due(self) -> bool:
        return self._unrolled > 0

    def ready(self) -> bool:
        return any(len(at) for at, _, _ in self._segments())

    def _segments(self) -> list[tuple[Array, dict[str, Array], int]]:
        """What would be learned from now, per environment: positions, raw rows, perhaps views of the buffer, and how many were
        too old."""
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
        """How many rows of a lane are learned from now."""
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
        """Whether rows stay when others are dropped."""
        return self._whole or self.transforms.behind > 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "store_policy": self.store_policy, "unrolled": self._unrolled, "learns": self._learns,
                "renewed": list(self._renewed), "dropped": self.dropped,
                "context": {str(lane): rows for lane, rows in self._context.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        vars(self)["store_policy"] = state.get("store_policy", self.store_policy)
        self._unrolled, self._learns, self.dropped = state["unrolled"], state["learns"], state["dropped"]
        self._renewed = (0, 0, *state["renewed"])[-2:]
        if not self._renewed[0] <= self._renewed[1] <= self._unrolled:
            raise ValueError(f"{self.where}: renewed is {state['renewed']}; expected two rising counts, at most the "
                             f"{self._unrolled} rows of the unroll")
        self._context = {int(lane): rows for lane, rows in state.get("context", {}).items()}


class EpisodicHelper(OnPolicyHelper):
    """Learns from whole episodes: whenever `episodes` of them have ended, or when an environment has `max_steps` rows waiting.

    Of a vector environment, rows of episodes that are still open wait for the next time.

    Args:
        episodes: Episodes of this agent, all its environments together, per training request.
        max_steps: Rows that one environment can hold; a longer wait is cut there and bootstrapped.
    """

    _nothing = "no episode has ended since the last learning"
    _whole = True

    def __init__(self, *, episodes: int = 1, max_steps: int = 1000, **options: Any) -> None:
        super().__init__(unroll=max_steps, **options)
        if episodes < 1:
            raise ValueError(f"{type(self).__name__}: episodes is {episodes}; expected at least 1")
        self.episodes = episodes
        self._ended = 0

    def _after_store(self, rows: int, ended: int) -> None:
        self._ended += ended
        super()._after_store(rows, ended)
        if self._ended >= self.episodes and not self.collecting:
            self._learn()


    def _to_take(self, rows: Mapping[str, Array]) -> int:
        n = len(rows["rew"])
        if self._unrolled >= self.unroll:
            return n
        ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
        return int(ends[-1]) + 1 if len(ends) else 0

    def _forget(self) -> None:
        super()._forget()
        self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._ended = state["ended"]


class OfflineHelper(OffPolicyHelper):
    """Learns from a buffer that was filled elsewhere; stores nothing. Where its agent has an environment it acts there, and
    learns from the data every `learn_every` steps.

    Args:
        data: The buffer, or the directory that `buffer.save(path)` wrote. Its columns must have the names, shapes and dtypes of
            the model's spaces; what it lacks beside observations and actions, the algorithm must not need; what it has more does
            no harm. Actions that it does not know to be the policy's (`buffer.act_space`) are the environment's, of the model's
            action space; the task learns from a copy of them in the policy's units.
        batch_size: Rows of one training request.
        in_order: Requests go through the data in the order in which it is stored, again and again; the last of a pass is as short
            as it must be. `last` marks the rows after which there is a cut, the last of the request included. None: where the
            algorithm's window asks for it.
    """

    def __init__(self, data: ReplayBuffer | str, *, batch_size: int = 64, in_order: bool | None = None, **options: Any) -> None:
        if isinstance(data, str):
            data = _recorded(data)
        if len(data) < batch_size:
            raise ValueError(f"OfflineHelper: batch_size is {batch_size}, the data has {len(data)} rows; lower batch_size or "
                             "give more data")
        if "warmup" in options:  # of whatever it learned online; here all rows are there
            options["warmup"] = min(options["warmup"], len(data))
        super().__init__(size=len(data), batch_size=batch_size, **options)
        if self.store_info:
            raise ValueError("OfflineHelper: store_info says what to store, and it stores nothing; leave it out (columns "
                             "`info.x` of the data are read as they are)")
        self.warmup = 0  # the rows are there
        self.data, self.in_order = data, in_order
        self._at = 0  # in that order

    def _check_window(self) -> None:
        if self.in_order is None:
            self.in_order = bool(self.window.in_order)
        if not self.in_order:
            super()._check_window()

    def lesson(self, n: int) -> tuple[dict[str, Array], Callable[[Mapping[str, Any]], None] | None]:
        """`n` random rows, or the next ones."""
        if not self.in_order:
            return super().lesson(n)
        assert self.buffer is not None
        with self.buffer.lock:
            order = self.buffer.sample_indices(0)
            begin, end = self._at, self._at + n
            self._at = end if end < len(order) else 0
            return self.rows_at(order[begin:end]), None

    def rows_at(self, indices: Array) -> dict[str, Array]:
        rows = super().rows_at(indices)
        if self.in_order:
            assert self.buffer is not None
            rows["last"] = np.append(self.buffer.next(indices[:-1]) != indices[1:], True)
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "at": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._at = state.get("at", 0)

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return self.data

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Checks the columns that are there."""
        for spec in specs:
            column = buffer.columns.get(spec.name)
            if column is None and spec.name.split(".")[0] in ("obs", "act", "state", *MARKS):
                raise spec.error("no such column", f"the data has {', '.join(buffer.columns) or 'no rows'}; record the field",
                                 True)
            if column is not None and (buffer.read_shape(spec.name) != spec.shape or column.dtype != spec.dtype):
                raise spec.error(f"{('N', *buffer.read_shape(spec.name))} {column.dtype}",
                                 "convert the data, or build the model for its spaces", True)

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any, info: Mapping[str, Any] | None = None,
        mask: Array | None = None, extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Offline data does not grow; the step counts for `learn_every`."""
        if self.mode != "test" and self.buffer is not None:
            n = 1 if not self._vector else len(self.lanes) if mask is None else int(mask.sum())
            self.steps += n
            self._after_store(n, int(np.sum(np.logical_or(terminated, truncated))))

    def interrupt(self, rows: Array | None = None) -> None:
        """Offline data does not change."""


def _recorded(path: str) -> ReplayBuffer:
    """The buffer that was saved there; that of other helpers of this process, where one has it."""
    if not os.path.isdir(path):
        raise ValueError(f"OfflineHelper: data is {path!r}; expected a directory that `buffer.save(path)` wrote, or a buffer")
    key = os.path.realpath(path), os.stat(path).st_mtime_ns
    if (data := _RECORDED.get(key)) is None:
        data = _RECORDED[key] = ReplayBuffer.load(path)
    return data


_RECORDED: weakref.WeakValueDictionary[tuple[str, int], ReplayBuffer] = weakref.WeakValueDictionary()

"""OffPolicyHelper: learns from rows that are drawn from a buffer, of its own or of all agents of the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_checks import made_buffer
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.interfaces import Learned
from parl_like.learning.fixed_settings import fixed
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values import plain
from parl_like.values.errors import NotEnoughRows
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


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
        draw_once: The rows of all `updates` are drawn together, shuffled, and divided among them, so none is drawn after the
            first of these. Learning begins when the buffer has as many.
        warmup: Rows in the buffer before the first request; at least `batch_size`.
        random_steps: Of the first so many steps, of all agents together (of each worker process), actions are drawn evenly from
            the action space, legal ones where the observation has a `mask`. Each environment takes an equal share, rounded up.
        The others: As for `AgentHelper`.

    Raises:
        ValueError: a number is below 1 (`warmup`, `random_steps`: below 0), or learning could never begin.
    """

    learns = refills = True
    size: int = fixed("the task's buffer has been made; build the helper with another")
    random_steps: int = fixed("the steps of its agents were counted out; assign `random_until`, or build the helper with another")

    def __init__(
        self, *, size: int = 100_000, batch_size: int = 64, learn_every: int | None = 4, updates: int = 1, warmup: int = 0,
        random_steps: int = 0, draw_once: bool = False,
        buffer: Callable[[int, int, np.random.Generator], ReplayBuffer] = ReplayBuffer, **options: Any,
    ) -> None:
        super().__init__(**options)
        self._make = buffer
        for name, value in (("size", size), ("batch_size", batch_size), ("learn_every", learn_every), ("updates", updates)):
            if value is not None and value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        drawn = batch_size * updates if draw_once else batch_size
        if warmup > size or drawn > size:
            what = f"batch_size · updates ({drawn}, draw_once)" if draw_once else f"batch_size ({batch_size})"
            raise ValueError(f"{type(self).__name__}: warmup ({warmup}) or {what} is above size ({size}); learning could never "
                             "begin")
        self.size, self.batch_size, self.learn_every, self.updates = size, batch_size, learn_every, updates
        if random_steps < 0:
            raise ValueError(f"{type(self).__name__}: random_steps is {random_steps}; expected at least 0")
        self.warmup, self.random_steps, self.draw_once = max(warmup, drawn), random_steps, draw_once
        self._since = 0

    def training_rule(self) -> BatchRule:
        """Return the rule by which a batch is one request of `batch_size` rows."""
        return BatchRule(max_rows=self.batch_size)

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """Return the buffer of `size` rows for `n_lanes` environments, as `buffer` makes it. Raises TypeError where it
        makes none."""
        return made_buffer(type(self), self.size, self._make, n_lanes, rng)

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Declare the columns of a row, and count out how many rows come before the first request, and how many are random."""
        super().allocate(buffer, specs)
        # So many rows, wherever they lie, have one that a whole sequence follows.
        self.warmup = max(self.warmup, self.window.sequence * buffer.n_lanes)
        self.acting.random_until = self.acting.random_steps = -(-self.random_steps // buffer.n_lanes) * len(self.lanes)

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
        if self.acting.collecting or self.learn_every is None:
            return  # not counted either, or the first step after a long collection would send hundreds of requests
        due, self._since = divmod(self._since + rows, self.learn_every)
        if due and self.ready():
            # An agent that does not wait for updates is those of one step ahead.
            requests = self.sender.most_open = due * self.updates
            if self.draw_once:
                for _ in range(due):
                    self._learn_divided()
                return
            for _ in range(requests):
                self._learn()

    def ready(self) -> bool:
        """Return whether the warmup is over; of agents that step together all say the same, so that none learns while others
        act."""
        buffer = self.buffer
        if buffer is None or (rows := len(buffer)) < self.batch_size * (self.updates if self.draw_once else 1):
            return False
        lanes = buffer.n_lanes
        # With full lanes of its own an agent waits for nobody: lanes of agents that have left may never fill.
        return (rows - 1) // lanes * lanes + 1 >= self.warmup or all(buffer.is_full(lane) for lane in self.lanes)

    def due(self) -> bool:
        """Return whether rows were stored since the last request."""
        return self._since > 0

    def _learn(self) -> dict[str, object] | None:
        return self.sender.send(*self.draw(self.batch_size))

    def _learn_divided(self) -> None:
        """Send `updates` requests of rows that are drawn before the first of them."""
        n = self.batch_size
        rows, done = self.draw(n * self.updates)
        order = self.rng.permutation(n * self.updates)
        for at in np.split(order, self.updates):
            self.sender.send({name: column[at] for name, column in rows.items()}, done and partial(done, part=at))

    def draw(self, n: int) -> tuple[dict[str, Array], Callable[..., None] | None]:
        """Return `n` random rows to learn from, flat field name → [n, ...], and what is to be called with the training return, if
        anything; of a `part` of the rows with their places, too. Raises NotEnoughRows as `sample` does."""
        buffer = self.buffer
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return self.sample(n)[0], None
        with buffer.lock:  # the serials of the rows that were drawn, not of those that came since
            rows, indices = self.sample(n)
            return rows, partial(self._feed_back, indices, buffer.serials(indices))

    def _feed_back(self, indices: Array, serials: Array, result: Learned, part: Array | None = None) -> None:
        """Take the priorities of the rows that were drawn, or of a `part` of them, by their places in the draw."""
        assert isinstance(self.buffer, PrioritizedReplayBuffer)
        if part is not None:
            indices, serials = indices[part], serials[part]
        if "priority" not in result:
            if "left_out" in result:
                return  # a step that failed before they were known
            raise ValueError(f"{self.where}: a prioritised buffer needs a `priority` for each row; learn of "
                             f"{type(self.task.algorithm).__name__} returned {', '.join(result)}")
        self.buffer.update_weight(indices, result["priority"], serials)

    def sample(self, n: int) -> tuple[dict[str, Array], Array]:
        """Return `n` random rows with what the algorithm's window asks for, flat field name → [n, ...], and their positions
        [n] in the buffer.

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
        """Return the rows at these positions of the buffer with what the algorithm's window asks for.

        Args:
            indices: int64 [n].

        Returns:
            Flat field name → [n, ...]; of sequences [n, length, ...], with `valid` bool [n, length].
        """
        buffer, window = self.buffer, self.window
        assert buffer is not None
        if self.acting.changes:
            self.acting.prepare()
        if window.sequence > 1 or window.burn_in:
            positions, valid = buffer.sequences(indices, window.sequence, window.burn_in)
            flat = positions.ravel()
            rows = self.writer.replayed(buffer.gather(flat), flat, flat, valid.ravel())
            out = {name: column.reshape(*positions.shape, *column.shape[1:]) for name, column in rows.items()}
            out |= {name: out[name][:, 0] for name in self.format.state if name in out}
            if isinstance(buffer, PrioritizedReplayBuffer):
                out["weight"] = buffer.weights(indices)  # of the sequence
            return {**out, "valid": valid}
        if window.n_step == 1:
            return self.writer.replayed(buffer.gather(indices), indices, indices)
        ahead = buffer.n_step(indices, window.n_step)
        last = ahead["last_index"]
        return self.writer.replayed({**buffer.gather(indices, last), "rew": ahead["rew"], "valid": ahead["valid"]}, indices, last)

    def state_dict(self) -> State:
        """Return the state of an `AgentHelper`, and how many rows were stored since the last request."""
        return {**super().state_dict(), "since": self._since}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `AgentHelper.load_state_dict`."""
        super().load_state_dict(state)
        self._since = plain.whole(state["since"])

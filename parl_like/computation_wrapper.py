"""ComputationWrapper: the two queues of one task. Gathers rows, packs, calls the task, unpacks, replies.

A wrapper owns no thread and no loop: a driver calls `serve` on a queue when the queue may close a batch, wakes the members of
the batch, and decides how agents wait. So the rules of batching, failing and counting stand here once for all drivers.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.communicator import Communicator, Link, Ticket
from parl_like.computation_task import BatchRule, ComputationTask, Mode
from parl_like.data.rows import RowBlock
from parl_like.errors import Dropped, Stopped, TaskFailed
from parl_like.explorer import Explorer
from parl_like.spec import Array, Spec, SpecError

RECENT = 1024
"""Batches whose times are kept for the percentiles."""


class Counters:
    """What a queue has done. Times are seconds; wait is that of a batch's first request, compute that of its whole service.

    `late` counts replies that nobody waited for any more, `dropped` the rows that a full queue gave up.
    """

    def __init__(self) -> None:
        self.requests = self.rows = self.batches = self.errors = self.late = self.dropped = 0
        self.waits: deque[float] = deque(maxlen=RECENT)
        self.computes: deque[float] = deque(maxlen=RECENT)

    def state_dict(self) -> dict[str, int]:
        """What was counted; the times are this process's own."""
        return {name: getattr(self, name) for name in ("requests", "rows", "batches", "errors", "late", "dropped")}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.__dict__.update(state)

    def summary(self, queued_rows: int) -> dict[str, float]:
        out = {
            "requests": self.requests, "rows": self.rows, "batches": self.batches, "errors": self.errors, "late": self.late,
            "dropped": self.dropped,
            "mean_batch": self.rows / self.batches if self.batches else 0.0, "queue_depth": queued_rows,
        }
        for name, times in (("wait", self.waits), ("compute", self.computes)):
            p50, p99 = np.percentile(list(times), [50, 99]) if times else (0.0, 0.0)
            out |= {f"{name}_p50_s": float(p50), f"{name}_p99_s": float(p99)}
        return out


class _Batch:
    """Requests that are served together."""

    __slots__ = ("tickets", "rows", "block", "parts", "born")

    def __init__(self, block: RowBlock | None = None) -> None:
        self.tickets: list[Ticket] = []
        self.rows = 0
        self.block: Any = block
        self.parts: list[Mapping[str, Array]] = []
        self.born = 0.0


class RequestQueue:
    """Waiting requests of one kind, already divided into batches; the last batch is open for more.

    Attributes:
        rule: When a batch closes.
        mode: Travels with every prediction.
        lock: Held while a request is written or a batch is taken. A driver with threads guards its own counts with it too.
        rows: Waiting rows.
        passed: 1 + how often a driver has served another queue since it last served this one.
        abandoned: Open requests that nobody waits for any more.
        stopped: Why new requests are refused; None: they are taken.
        server: The driver's own.
    """

    kind = ""

    def __init__(self, task: ComputationTask, rule: BatchRule, lock: Any, mode: Mode = "collect") -> None:
        self.task = task
        self.rule = rule
        self.mode: Mode = mode
        self.max_rows = rule.max_rows
        self.lock = lock
        self.batches: deque[_Batch] = deque()
        self.counters = Counters()
        self.rows = 0
        self.passed = 1
        self.abandoned = 0
        self.stopped: str | None = None
        self._refusal: type[Exception] = Stopped
        self.server: Any = None

    def put(self, ticket: Ticket, values: Any) -> list[Ticket] | None:
        """Adds a request; the caller holds `lock`, and wakes the tickets that were dropped for it."""
        raise TypeError("use PredictionQueue or TrainingQueue")

    def _room_for(self, rows: int) -> _Batch:
        """The open batch, or a new one where `rows` more would pass `max_rows`."""
        batch = self.batches[-1] if self.batches else None
        if batch is None or (self.max_rows is not None and batch.rows + rows > self.max_rows):
            batch = self._new_batch()
            batch.born = perf_counter()
            self.batches.append(batch)
        return batch

    def _new_batch(self) -> _Batch:
        return _Batch()

    def check_open(self, ticket: Ticket) -> None:
        if self.stopped is not None:
            raise self._refusal(f"{ticket.agent}, task {self.task.name!r}: {self.stopped}")

    def serve(self) -> list[Ticket]:
        """Serves the oldest batch and returns its tickets, replied to but not yet woken; none where none waits.

        Whatever the task raises becomes the tickets' error. An interruption that is no `Exception` (Ctrl-C) is raised here, and
        the batch is put back.
        """
        batch = self.take()
        return [] if batch is None else self.work(batch)

    def take(self) -> _Batch | None:
        """The oldest batch, which no longer waits; None where none does."""
        with self.lock:
            if not self.batches:
                return None
            batch = self.batches.popleft()
            self.rows -= batch.rows
            return batch

    def work(self, batch: _Batch) -> list[Ticket]:
        """`serve`, for a batch that was taken."""
        begin = perf_counter()
        tickets = batch.tickets
        try:
            self._run(batch)
        except Exception as error:  # noqa: BLE001  a task may raise anything, and its agents must hear of it
            self._fail(error, tickets)
        except BaseException:
            with self.lock:
                self.batches.appendleft(batch)
                self.rows += batch.rows
            raise
        counters = self.counters
        counters.requests += len(tickets)
        counters.rows += batch.rows
        counters.batches += 1
        counters.waits.append(begin - batch.born)
        counters.computes.append(perf_counter() - begin)
        if self.abandoned:
            late = sum(ticket.abandoned for ticket in tickets)
            counters.late += late
            self.abandoned -= late
        self._recycle(batch)
        return tickets

    def _fail(self, error: Exception, tickets: list[Ticket]) -> None:
        """Answers these requests with what the task raised, named and with its traceback."""
        self.counters.errors += 1
        names = [str(ticket.agent) for ticket in tickets[:4]] + (["…"] if len(tickets) > 4 else [])
        text = "".join(traceback.format_exception(error)).rstrip()
        message = (f"task {self.task.name!r}: {self.kind} failed for a batch of {len(tickets)} requests ({', '.join(names)}): "
                   f"{type(error).__name__}: {error}\n{text}")
        for ticket in tickets:
            failed = TaskFailed(message)
            failed.__cause__ = error
            ticket.error = failed

    def _run(self, batch: _Batch) -> None:
        raise TypeError("use PredictionQueue or TrainingQueue")

    def _recycle(self, batch: _Batch) -> None:
        pass

    def fail_all(self, reason: str, kind: type[Exception] = Stopped) -> list[Ticket]:
        """Answers every queued request with the error `kind`, and refuses new ones with it; returns the tickets to wake."""
        with self.lock:
            self.stopped, self._refusal = reason, kind
            tickets = [ticket for batch in self.batches for ticket in batch.tickets]
            self.batches.clear()
            self.rows = self.abandoned = 0
        for ticket in tickets:
            ticket.error = kind(f"{ticket.agent}, task {self.task.name!r}: {reason}")
        return tickets


class PredictionQueue(RequestQueue):
    """Rows of many agents, written straight into preallocated columns."""

    kind = "predict"

    def __init__(self, task: ComputationTask, rule: BatchRule, lock: Any, mode: Mode, specs: list[Spec]) -> None:
        super().__init__(task, rule, lock, mode)
        self.specs = specs
        self.explorer: Explorer | None = None
        self.to_env: Any = None
        space = getattr(task.algorithm.model, "act_space", None)
        self.one_number = isinstance(space, gym.spaces.Box) and space.shape == ()
        self._capacity = rule.max_rows or 64
        self._free: list[RowBlock] = []
        self.make_block: Callable[[list[Spec], int], RowBlock] = RowBlock

    def add_explorer(self, explorer: Explorer, agent: Any) -> None:
        if self.explorer is None:
            self.explorer = explorer
            if explorer.noise is not None:
                self.specs = [*self.specs, explorer.noise.owned_by(f"task {self.task.name!r}")]
        elif self.explorer.kind() != explorer.kind():
            raise ValueError(
                f"{agent}, task {self.task.name!r}: explorer {explorer.kind()} differs from {self.explorer.kind()} of the other "
                "agents; one batch has one kind of explorer, so give all helpers of a task the same"
            )

    def _new_batch(self) -> _Batch:
        while self._free:
            block = self._free.pop()
            if block.capacity >= self._capacity:
                return _Batch(block)
        return _Batch(self.make_block(self.specs, self._capacity))

    def put(self, ticket: Ticket, values: Any) -> None:
        if self.stopped is not None:
            self.check_open(ticket)
        ticket.queue = self
        rows = ticket.rows or 1
        if self.batches and self.max_rows is None:
            batch = self.batches[-1]
        else:
            batch = self._room_for(rows)
        start = batch.rows
        if start + rows > batch.block.capacity:
            self._grow(batch, start + rows)
        try:
            if ticket.rows:
                batch.block.write_rows(start, rows, values)
            else:
                batch.block.write(start, values)
        except Exception as error:
            if not start:
                self.batches.pop()
            raise self._named(error, ticket) from None
        batch.rows = start + rows
        batch.tickets.append(ticket)
        ticket.start = start
        self.rows += rows

    def _named(self, error: Exception, ticket: Ticket) -> Exception:
        """The same error with the agent's name in front."""
        return type(error)(f"{ticket.agent}: {error}")

    def _grow(self, batch: _Batch, rows: int) -> None:
        capacity = max(2 * batch.block.capacity, rows)
        larger = self.make_block(self.specs, capacity)
        for name, column in batch.block.arrays.items():
            larger.arrays[name][: batch.rows] = column[: batch.rows]
        batch.block = larger
        self._capacity = max(self._capacity, capacity)

    def _run(self, batch: _Batch) -> None:
        n, tickets = batch.rows, batch.tickets
        inputs = {name: column[:n] for name, column in batch.block.arrays.items()}
        noise = inputs.pop("noise", None)
        try:
            self._ask(tickets, inputs, noise)
        except Exception as error:  # noqa: BLE001  whatever the task raised
            if not self.task.bisect or len(tickets) == 1:
                raise
            starts = [ticket.start for ticket in tickets]
            try:
                self._ask_in_halves(error, tickets, inputs, noise)
            except BaseException:
                for ticket, start in zip(tickets, starts, strict=True):  # Ctrl-C: the batch is put back as it was
                    ticket.start, ticket.error = start, None
                raise

    def _ask_in_halves(self, error: Exception, tickets: list[Ticket], inputs: Mapping[str, Array], noise: Array | None) -> None:
        """After `error` for these requests together: answers each with others that do not fail, or fails it alone."""
        if len(tickets) == 1:
            self._fail(error, tickets)
            return
        middle = len(tickets) // 2
        row = tickets[middle].start
        for half, rows in ((tickets[:middle], slice(row)), (tickets[middle:], slice(row, None))):
            part = {name: column[rows] for name, column in inputs.items()}, None if noise is None else noise[rows]
            for ticket in half:
                ticket.start -= rows.start or 0
            try:
                self._ask(half, *part)
            except Exception as again:  # noqa: BLE001  as above
                self._ask_in_halves(again, half, *part)

    def _ask(self, tickets: list[Ticket], inputs: Mapping[str, Array], noise: Array | None) -> None:
        """One forward pass, and its answers to the requests whose rows these are."""
        out, version = self.task.act(inputs, self.mode)
        if self.explorer is not None:
            for name, value in self.explorer.act(out, noise).items():
                # The columns are reused for the next batch, so an explorer's action must not live in them.
                out[name] = value.copy() if noise is not None and np.may_share_memory(value, noise) else value
        self.answer(tickets, out, version)

    def answer(self, tickets: list[Ticket], out: Mapping[str, Array], version: int) -> None:
        """Gives the members of one batch its outputs."""
        acts = None
        if "act" in out:
            act = out["act"] if self.to_env is None else self.to_env(out["act"])
            if act.ndim > 1:
                acts = list(act)
            else:  # Python numbers; of a Box of shape () arrays, as its environment expects
                acts = [act[i, ...] for i in range(len(act))] if self.one_number else act.tolist()
        for ticket in tickets:
            ticket.out = out
            ticket.acts = acts
            ticket.version = version

    def _recycle(self, batch: _Batch) -> None:
        self._free.append(batch.block)


class TrainingQueue(RequestQueue):
    """Learning batches of many agents, concatenated when they are served."""

    kind = "learn"
    last_result: Mapping[str, Any] = {}

    def put(self, ticket: Ticket, values: Mapping[str, Array]) -> list[Ticket] | None:
        self.check_open(ticket)
        ticket.queue = self
        batch = self._room_for(ticket.rows)
        if batch.parts and values.keys() != batch.parts[0].keys():
            raise ValueError(
                f"{ticket.agent}, task {self.task.name!r}: training fields {sorted(values)} differ from "
                f"{sorted(batch.parts[0])} of the requests before; all helpers of a task must send the same fields"
            )
        try:
            self._check(ticket, values, batch.parts[0] if batch.parts else None)
        except Exception:
            if not batch.parts:
                self.batches.pop()
            raise
        batch.parts.append(values)
        batch.tickets.append(ticket)
        ticket.start = batch.rows
        batch.rows += ticket.rows
        self.rows += ticket.rows
        rule = self.rule
        return self._drop_oldest(ticket) if rule.when_full == "drop_oldest" and self.rows > (rule.max_queued or self.rows) else None

    def is_full(self) -> bool:
        """Whether the sender of one more request must wait for it."""
        return self.rule.max_queued is not None and self.rule.when_full == "block" and self.rows >= self.rule.max_queued

    def _drop_oldest(self, newest: Ticket) -> list[Ticket]:
        assert self.rule.max_queued is not None
        dropped = []
        while self.rows > self.rule.max_queued and self.batches[0].tickets[0] is not newest:
            batch = self.batches[0]
            ticket = batch.tickets.pop(0)
            batch.parts.pop(0)
            for left in batch.tickets:
                left.start -= ticket.rows
            batch.rows -= ticket.rows
            self.rows -= ticket.rows
            self.counters.dropped += ticket.rows
            ticket.error = Dropped(f"{ticket.agent}, task {self.task.name!r}: dropped {ticket.rows} rows to learn from; the queue holds "
                                   f"{self.rule.max_queued} and newer ones came")
            dropped.append(ticket)
            self.abandoned -= ticket.abandoned
            batch.born = perf_counter()
            if not batch.tickets:
                self.batches.popleft()
        return dropped

    def _check(self, ticket: Ticket, values: Mapping[str, Array], first: Mapping[str, Array] | None) -> None:
        """Rows of one batch are joined, so the first request must fit the model's inputs, and the others the first."""
        if first is None:
            inputs = self.task.algorithm.model.inputs()
            for name in values.keys() & inputs.keys():
                shape, value = inputs[name].shape, values[name]
                if value.ndim <= len(shape) or value.shape[value.ndim - len(shape) :] != shape:  # perhaps with an axis of time
                    raise self._misfit(ticket, name, value, shape, inputs[name].dtype, "the model")
            return
        for name, value in values.items():
            other = first[name]
            if value.shape[1:] != other.shape[1:] or value.dtype != other.dtype:
                raise self._misfit(ticket, name, value, other.shape[1:], other.dtype, "the request before")

    def _misfit(self, ticket: Ticket, name: str, value: Array, shape: tuple[int, ...], dtype: Any, whose: str) -> SpecError:
        return SpecError(f"{ticket.agent}, task {self.task.name!r}, training field {name!r}: expected rows of {shape} {dtype}, as in {whose}, "
                         f"got {value.shape[1:]} {value.dtype}")

    def _run(self, batch: _Batch) -> None:
        result = self.task.learn(self.joined(batch))
        for name, value in result.items():
            if isinstance(value, np.ndarray) and value.ndim and len(value) != batch.rows:
                raise ValueError(f"learn returned {name!r} with {len(value)} rows; expected a scalar or one row for each of {batch.rows}")
        self.last_result = {name: value for name, value in result.items() if not np.ndim(value)}
        for ticket in batch.tickets:
            ticket.out = result
            ticket.version = self.task.version

    @staticmethod
    def joined(batch: _Batch) -> Mapping[str, Array]:
        """The rows of all requests of a batch, in their order."""
        parts = batch.parts
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


class ComputationWrapper:
    """Prediction queue and training queue of one task.

    Args:
        task: The task to serve.
        mode: 'collect' for the robot's own agents, 'test' for an evaluation; travels with every prediction.
        training_rule: The helpers' default, where the task gives none.
    """

    def __init__(self, task: ComputationTask, mode: Mode = "collect", training_rule: BatchRule | None = None, lock: Any = None) -> None:
        self.task = task
        owner = f"task {task.name!r}"
        lock = threading.Lock() if lock is None else lock
        specs = [spec.owned_by(owner) for spec in task.algorithm.model.inputs().values()]
        self.predictions = PredictionQueue(task, task.predict_rule or BatchRule(), lock, mode, specs)
        self.trainings = TrainingQueue(task, task.training_rule or training_rule or BatchRule(), lock)
        self.communicators: dict[str, Communicator] = {}

    @property
    def request_specs(self) -> list[Spec]:
        """The fields of one prediction request, in order."""
        return self.predictions.specs

    def create_communicator(self, agent: Any, link: Link) -> Communicator:
        """The agent's end of the queues; agents may join while others run.

        Raises:
            ValueError: an agent of that name has one already.
        """
        name = str(agent)
        communicator = Communicator(self, agent, link)
        # setdefault is one step of the interpreter, so threads that register at the same time need no lock.
        if self.communicators.setdefault(name, communicator) is not communicator:
            raise ValueError(f"{name} already has a communicator of task {self.task.name!r}; close() it first, or give agents different ids")
        return communicator

    def remove_communicator(self, communicator: Communicator) -> None:
        """Frees the agent's name. A communicator that was removed before is left alone, and so is its successor."""
        name = str(communicator.agent)
        if self.communicators.get(name) is communicator:
            del self.communicators[name]

    def state_dict(self) -> dict[str, Any]:
        """What was counted, and the last training return."""
        return {"predict": self.predictions.counters.state_dict(), "learn": self.trainings.counters.state_dict(),
                "last_result": {name: float(value) for name, value in self.trainings.last_result.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.predictions.counters.load_state_dict(state["predict"])
        self.trainings.counters.load_state_dict(state["learn"])
        self.trainings.last_result = state["last_result"]

    def summary(self) -> dict[str, float]:
        """Counters of both queues: 'predict/requests', 'predict/mean_batch', 'learn/compute_p50_s', …; 'learn/skipped': the task's `skipped`."""
        out: dict[str, float] = {}
        for queue in (self.predictions, self.trainings):
            out |= {f"{queue.kind}/{name}": value for name, value in queue.counters.summary(queue.rows).items()}
        return {**out, "learn/skipped": self.task.skipped}

"""Link: the way of messages to and from workers; Supervisor: hears them, and replaces those that end, hang or grow too large."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any, Protocol

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.drivers.messages import Frames, Kind, Message, WireError, pack, unpack, unpack_state
from parl_like.drivers.workers.handle import WorkerHandle, WorkerStatus
from parl_like.drivers.workers.shared_parameters import Publication
from parl_like.process.child import readable, shielded
from parl_like.values.spec import Array, Spec

SLOW_TIMES, SLOW_SECONDS = 10.0, 0.05
"""A worker is called slow when its turns take so many times as long as those of the others, and so many seconds."""

LISTEN_S = 0.5
"""Seconds that the robot waits for messages at most before it looks after its workers."""

AWAKE_S = 0.0005
"""Seconds of a worker's turns below which the robot does not sleep until the next one has come."""

log = logging.getLogger("parl_like.processes")


class Link(Protocol):
    """The link to workers: it begins, hears and ends them. It carries lists of frames (`parl_like.drivers.messages`) both ways,
    in order and once. No call waits, unless it says so.

    Attributes:
        folder: Where memory lies that its workers share with the robot; empty: they share none.
        prompt: Whether a message is there within some 10 us.
    """

    folder: str = ""
    prompt: bool = False

    def open(self) -> None:
        """Makes sockets and the like, before the first worker begins. An OSError or ValueError says in one line why it cannot."""

    def close(self) -> None:
        """After the last worker was forgotten: closes what `open` made, which may be called again."""

    def begin(self, worker: WorkerHandle, recipe: object) -> None:
        """Begins a worker's process, with its `Recipe`; its first message is HELLO. A TypeError says why the recipe cannot be
        sent, an OSError why no process can be made."""

    def send(self, worker: WorkerHandle, frames: list[object]) -> None:
        """To a worker that has said HELLO; where it has just ended, nothing happens."""

    def receive(self) -> Sequence[tuple[WorkerHandle, list[object]]]:
        """Return what has come since the last call from workers that have begun and not been forgotten, in the order of each."""

    def descriptors(self) -> Sequence[int]:
        """File descriptors of which one becomes readable when `receive` or `ended` may have something new."""

    def ended(self) -> Sequence[tuple[WorkerHandle, str]]:
        """Workers that have ended by themselves, and how; they are to be forgotten."""

    def kill(self, worker: WorkerHandle) -> None:
        """Ends a worker at once."""

    def wait(self, worker: WorkerHandle, seconds: float) -> bool:
        """Wait, and return whether the worker ends by itself within so many seconds."""

    def forget(self, worker: WorkerHandle) -> None:
        """The worker is over; nothing more is taken from it."""

    def memory(self, worker: WorkerHandle) -> int:
        """Bytes of resident memory; 0 where that is unknown."""
        return 0

    def rows(self, worker: WorkerHandle, specs: Sequence[Spec], block: Sequence[int], n: int) -> Mapping[str, Array]:
        """`n` rows of a request that says where they are (`parl_like.drivers.workers.shared_rows`), where workers share
        memory.

        Raises:
            WireError: they share none.
        """
        raise WireError("rows in shared memory, from a worker that shares none")


class Supervisor:
    """Begins workers, talks with them, watches them while the robot listens, and replaces them.

    Args:
        options: `parl_like.drivers.workers.processes.Processes` or what has its limits.
        recipe: Called with a worker: what its next process is to be told.
        lost: Called with a worker that has ended or was killed, and why; calls `replace`.
        failed: Called with a worker and its message that an agent has raised.
        sync: All others wait for a worker that is slow; and what it is sent waits until the robot listens, see `deliver`.

    Attributes:
        restarts: Processes that took the place of another.
        rounds: Called with steps that are under way: for how many predictions of replicas a worker may go on by itself; None: it
            knows.
    """

    def __init__(self, link: Link, options: Any, recipe: Callable[[WorkerHandle], object],
                 lost: Callable[[WorkerHandle, str], None], failed: Callable[[WorkerHandle, Message], None], sync: bool) -> None:
        self._link, self._options, self._recipe, self._sync = link, options, recipe, sync
        self._lost, self._failed = lost, failed
        self.workers: list[WorkerHandle] = []
        self.restarts = 0
        self.rounds: Callable[[int], int] | None = None
        self._given: dict[WorkerHandle, int] = {}  # rounds that it may have taken, and was not heard after
        self.looked = 0.0
        self._causes: Counter[str] = Counter()
        self._ends: dict[str, Any] = {}

    def begin(self, worker: WorkerHandle) -> None:
        """Begin a worker's next process. Raises what `Link.begin` does."""
        self._given.pop(worker, None)
        worker.incarnation += 1
        worker.reset()
        recipe = self._recipe(worker)
        with shielded():  # a worker that nobody knew of would never be ended
            self._link.begin(worker, recipe)
            worker.become(WorkerStatus.STARTING)

    def _put(self, worker: WorkerHandle, kind: Kind, parts: dict[str, Any]) -> None:
        """A message to a worker that is up, which `deliver` sends. Raises WireError where `pack` does; then nothing was sent."""
        if not worker.up:
            return
        if self.rounds is not None and kind is not Kind.STATE:
            rounds = self.rounds(self._under_way(worker))
            self._given[worker] = max(self._given.get(worker, 0), rounds)  # it may have taken more of them by now than these
            parts = {**parts, "notes": {**parts["notes"], "rounds": rounds}}
        frames = pack(kind, **parts)
        if kind is not Kind.STATE:  # parameters call for no answer
            if worker.sent == worker.seen:
                worker.silent, worker.owes = 0.0, monotonic()  # from now on it owes a sign of life
            worker.sent += 1
            worker.paused = False
        worker.outbox.append((kind, parts, frames))

    def _under_way(self, worker: WorkerHandle) -> int:
        """Return the steps that are not counted yet, or that other workers may take before they are heard (async)."""
        others = () if self._sync else ((other, n) for other, n in self._given.items() if other is not worker)
        coming = sum(n * sum(agent.n_envs for agent in other.agents) for other, n in others)
        return coming + sum(int(message.notes.get("steps", 0)) for one in self.workers for message in one.inbox)

    def deliver(self) -> None:
        """Sends what waits in the outboxes. What goes to one worker together is taken as one: its agents go on after the last.

        In sync mode this is done when the robot listens, and no agent acts before. So what a worker does never depends on which
        of two messages it happened to read before the other came, and two runs are the same.
        """
        for worker in self.workers:
            outbox = worker.outbox
            if not outbox:
                continue
            orders = [i for i, (kind, _, _) in enumerate(outbox) if kind is not Kind.STATE]
            last = orders[-1] if orders else 0
            with shielded():  # a message that is sent twice, or in half, would cost the worker
                for i, (kind, parts, frames) in enumerate(outbox):
                    if i < last and kind is not Kind.STATE:
                        frames = pack(kind, **{**parts, "notes": {**parts.get("notes", {}), "more": True}})  # noqa: PLW2901
                    self._link.send(worker, frames)
                outbox.clear()

    def _have_put(self) -> None:
        """Async: delivers at once."""
        if not self._sync:
            self.deliver()

    def order(self, order: str, workers: Sequence[WorkerHandle] | None = None, arrays: Mapping[str, Array] | None = None,
              **notes: object) -> None:
        """A message that `parl_like.drivers.workers.worker` obeys, to all workers or these."""
        for worker in self.workers if workers is None else workers:
            self._put(worker, Kind.ORDER, {"notes": {"order": order, **notes}, "arrays": arrays or {}})
        self._have_put()

    def order_agents(self, order: str, worker: WorkerHandle, agents: Sequence[Agent], collecting: bool | str) -> None:
        """An order to some agents of a worker, with what they may do of steps and episodes; -1: no bound."""
        def numbers(bounds: Iterable[int | None]) -> list[int]:
            return [-1 if bound is None else int(bound) for bound in bounds]

        self.order(order, [worker], agents=[agent.index for agent in agents], collecting=collecting,
                   steps=numbers(agent.quota.steps for agent in agents),
                   episodes=numbers(agent.quota.episodes for agent in agents))

    def reply(self, replies: Iterable[tuple[WorkerHandle, Kind, dict[str, object]]]) -> None:
        """Answers requests of workers."""
        for worker, kind, parts in replies:
            self._put(worker, kind, parts)
        self._have_put()

    def publish(self, publications: Iterable[Publication], workers: Sequence[WorkerHandle] | None = None) -> None:
        """Parameters of tasks, to all workers or these."""
        for task, notes, arrays in publications:
            for worker in self.workers if workers is None else workers:
                self._put(worker, Kind.STATE, {"task": task, "notes": notes, "arrays": arrays})
        self._have_put()

    def move_ends(self, key: str, ends: Sequence[int]) -> None:
        """Tells workers where schedules end (`parl_like.learning.span`); those that are just beginning, when they say hello."""
        self._ends = {"key": key, "ends": list(ends)}
        self.order("move_ends", **self._ends)

    def listen(self, seconds: float, also: Sequence[int] = ()) -> bool:
        """Wait until a message or the end of a worker may be there, or one of the descriptors `also` is readable, so many seconds
        at most; return whether that is so.

        It stays awake where the next message comes soon. Asleep, this process would leave its core to a worker, whose memory then
        takes the place of its own in the caches: both would be half as fast after each message.
        """
        descriptors = [*self._link.descriptors(), *also]
        if self._link.prompt and not also:
            soon = min((worker.turn_s for worker in self.workers if worker.running and not worker.quiet), default=AWAKE_S)
            end = perf_counter() + 2.0 * soon
            while soon < AWAKE_S and perf_counter() < end:
                if readable(descriptors, 0.0):
                    return True
                os.sched_yield()  # whoever needs this core has it first
        return bool(readable(descriptors, seconds))

    def drain(self) -> bool:
        """Takes in the messages that have come; whether there were any."""
        came = self._link.receive()
        broken: set[WorkerHandle] = set()
        for worker, frames in came:
            if worker not in broken:
                try:
                    self._hear(worker, frames)
                except WireError as error:
                    broken.add(worker)  # what else it had sent is not its successor's
                    self.kill(worker, f"sent a message that cannot be read: {error}")
        return bool(came)

    def _hear(self, worker: WorkerHandle, frames: Frames) -> None:
        if not worker.taken:
            return
        worker.silent = 0.0
        message = unpack(frames)
        notes = message.notes
        if message.kind is Kind.HELLO:
            if worker.up:
                raise WireError("a second hello")
            worker.become(WorkerStatus.READY)
            if self._ends:
                self.order("move_ends", [worker], **self._ends)
        elif message.kind is Kind.STATE:
            if notes["answer"] == worker.sent:  # else to an order that was given up
                worker.states.append(unpack_state(message.arrays))
        elif message.kind is Kind.FAILED:
            self._failed(worker, message)
        else:
            worker.inbox.append(message)
            if "turn" in notes:
                self._given.pop(worker, None)
                worker.heard_turn(notes)

    def look(self) -> None:
        """Finds workers that have ended, hang, have grown too large or never come up, and those that are slow."""
        options, now = self._options, monotonic()
        # Of the time in which this process did something else, or stood still, no worker's silence is known.
        listened, self.looked = min(now - self.looked, LISTEN_S), now
        for worker, how in self._link.ended():
            self.drain()  # what it had sent before
            if worker.taken:
                self._lost(worker, how)
        for worker in self.workers:
            if not worker.taken:
                continue
            worker.silent += listened
            limit = options.memory_limit
            if worker.owing and worker.silent > options.step_limit:
                self.kill(worker, f"said nothing for {options.step_limit:g} s; an environment hangs, or takes longer than "
                                  "step_limit")
            elif not worker.up and worker.silent > options.start_limit:
                self.kill(worker, f"was not ready after {options.start_limit:g} s (start_limit)")
            elif limit is not None and (used := self._link.memory(worker)) > limit:
                self.kill(worker, f"uses {used >> 20} MiB of memory; memory_limit is {limit >> 20} MiB")
        self._call_slow([worker for worker in self.workers if worker.up])

    def _call_slow(self, workers: Sequence[WorkerHandle]) -> None:
        """Names, once, a worker whose turns take far longer than those of the others."""
        for worker in workers:
            others = [other.pace for other in workers if other is not worker and other.pace]
            if others and not worker.slow and worker.seen >= 10:
                median = float(np.median(others))
                worker.slow = worker.pace >= max(SLOW_TIMES * median, SLOW_SECONDS)
                if worker.slow:
                    log.warning("%s is slow: a turn of its agents takes %.2g s, of the other workers %.2g s; %s", worker,
                                worker.pace, median, "all others wait for it" if self._sync else "nobody waits for it")

    def kill(self, worker: WorkerHandle, why: str) -> None:
        """Ends a worker, which another replaces."""
        self._link.kill(worker)
        self._lost(worker, why)

    def replace(self, worker: WorkerHandle, why: str) -> bool:
        """Begins a lost worker's next process; False where it was replaced too often."""
        if worker.budget.spend() is None:
            return False
        self.restarts += 1
        self.warn_once(why, f"{worker} {why}; it is replaced, its agents begin anew")
        self.begin(worker)
        return True

    def end(self, worker: WorkerHandle, why: str = "") -> None:
        """Ends a worker that nobody needs any more, with a warning where there is a reason for one."""
        if why:
            self.warn_once(why, f"{worker} {why}; it is ended")
        self._link.kill(worker)
        self.forget(worker)

    def forget(self, worker: WorkerHandle) -> None:
        """The worker is over."""
        with shielded():
            self._link.forget(worker)
            worker.become(WorkerStatus.ENDED)
            worker.reset()

    def warn_once(self, cause: str, text: str) -> None:
        """A warning the first time that something happens for this cause; after that only the log's details say so."""
        cause = cause.rpartition("; ")[2]  # without the numbers of this time
        self._causes[cause] += 1
        log.log(logging.WARNING if self._causes[cause] == 1 else logging.INFO, "%s", text)

    def sum_up(self) -> None:
        """At the end: how often it happened again."""
        for cause, n in self._causes.items():
            if n > 1:
                log.warning("%d more workers or agents began anew for the same reason: %s", n - 1, cause)
        self._causes.clear()

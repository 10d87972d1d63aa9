"""What the robot and its workers say to each other: requests and replies, orders, what has happened to agents, and errors.

What a worker has sent is kept in its handle until `take_in` puts it into the tasks' queues, in the order of the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np

from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.drivers.links import Link
from parl_like.drivers.remote_errors import ERRORS, RemoteError, as_text, text_of
from parl_like.drivers.supervisor import Supervisor
from parl_like.drivers.worker_crew import Recipe
from parl_like.drivers.worker_handle import WorkerHandle
from parl_like.errors import AgentFailed
from parl_like.queues import Ticket
from parl_like.spec import Array
from parl_like.stages import overridden
from parl_like.wire import Kind, Message, WireError, pack, unpack, unpack_state


class WorkerMessages(CooperativeDriver):
    """The part of `HostedDriver` that writes and reads messages; for its arguments and attributes see there."""

    def __init__(
        self, sync: bool, failed: Callable[[Any, BaseException], None], on_error: Callable[[Any, BaseException], None],
        options: Any, link: Link,
    ) -> None:
        super().__init__(sync, failed, on_error)
        self.link = link
        waits = "all others wait for it" if sync else "nobody waits for it"
        self.supervisor = Supervisor(link, options, lambda worker: self._recipe(worker), lambda worker,
                                     why: self._lost(worker, why), waits)
        self.agent_restarts = 0
        self._hello = False  # whether a worker has said hello
        self._calling = False  # a hook or a stop condition is being called
        self._counting: Sequence[Callable[..., None]] = ()  # hooks of many steps at once
        self._lesson_replies: list[Ticket] = []  # sync: given when the run goes on

    @property
    def workers(self) -> list[WorkerHandle]:
        return self.supervisor.workers

    @property
    def restarts(self) -> int:
        """Of workers."""
        return self.supervisor.restarts

    def _recipe(self, worker: WorkerHandle) -> Recipe:
        """What a worker's next process is told."""
        raise NotImplementedError

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """A worker has ended."""
        raise NotImplementedError

    def check_hooks(self, hooks: list[Any]) -> list[Callable[..., None]]:
        """The hooks' methods for ended episodes.

        Raises:
            ValueError: a hook listens to what happens in the workers.
        """
        hooks = [hook for hook in hooks if hook is not self.crew.trace]  # the workers have their own
        for hook in hooks:
            heard = [stage for stage in ("pre_episode", "pre_act", "post_act") if overridden([hook], stage)]
            if heard and not getattr(hook, "counts_only", False):
                raise ValueError(f"{type(hook).__name__} listens to {', '.join(heard)}, which happen in worker processes; under "
                                 f"driver={self.crew.driver_name!r} hooks hear "
                                 "of the experiment and of ended episodes (post_episode). Put the rest into the agent, or use "
                                 "another driver")
        self._counting = [hook.post_act for hook in hooks if getattr(hook, "counts_only", False)]
        return overridden(hooks, "post_episode")

    @contextmanager
    def _called(self, agent: Any) -> Iterator[None]:
        """Around calls of hooks and stop conditions, whose errors are as if the agent had raised them."""
        self._calling = True
        try:
            yield
        except BaseException as error:  # noqa: BLE001  as in an agent
            self._failed(agent, error)
        finally:
            self._calling = False

    def _send(self, worker: WorkerHandle, kind: Kind, **parts: Any) -> None:
        if not worker.up:
            return
        if kind is not Kind.STATE:  # parameters call for no answer
            if worker.sent == worker.seen:
                worker.silent, worker.owes = 0.0, monotonic()  # from now on it owes a sign of life
            worker.sent += 1
            worker.paused = False
        self.link.send(worker, pack(kind, **parts))

    def _order(self, order: str, workers: Sequence[WorkerHandle] | None = None, arrays: Mapping[str, Array] | None = None,
               **notes: Any) -> None:
        for worker in self.workers if workers is None else workers:
            self._send(worker, Kind.ORDER, notes={"order": order, **notes}, arrays=arrays or {})

    def _with_quotas(self, order: str, worker: WorkerHandle, agents: Sequence[Any]) -> None:
        def numbers(name: str) -> Array:
            return np.array([-1 if getattr(a, name) is None else getattr(a, name) for a in agents], np.int64)

        arrays = {"agents": np.array([a.index for a in agents], np.int32), "steps": numbers("quota_steps"),
                  "episodes": numbers("quota_episodes")}
        self._order(order, [worker], arrays, collecting=self.collecting)

    def _drain(self) -> bool:
        """Takes in the messages that have come; whether there were any."""
        came = self.link.receive()
        broken: set[WorkerHandle] = set()
        for worker, frames in came:
            if worker not in broken:
                try:
                    self._hear(worker, frames)
                except WireError as error:
                    broken.add(worker)  # what else it had sent is not its successor's
                    self.supervisor.kill(worker, f"sent a message that cannot be read: {error}")
        return bool(came)

    def _hear(self, worker: WorkerHandle, frames: list[Any]) -> None:
        if not worker.taken:
            return
        worker.silent = 0.0
        message = unpack(frames)
        kind = message.kind
        if kind is Kind.HELLO:
            worker.up = self._hello = True
        elif kind is Kind.STATE:
            if message.notes.get("answer") == worker.sent:  # else to an order that was given up
                worker.states.append(unpack_state(message.arrays))
        elif kind is Kind.FAILED:
            self._agent_failed(worker, message)
        else:
            worker.inbox.append(message)
            if "turn" in message.notes:
                worker.heard_turn(int(message.notes["turn"]), "paused" in message.notes)  # type: ignore[arg-type]

    def _agent_failed(self, worker: WorkerHandle, message: Message) -> None:
        index = int(message.notes["agent"])  # type: ignore[arg-type]
        name, text = str(message.notes["type"]), text_of(message)
        agent = worker.agents[index - worker.agents[0].index] if index >= 0 else worker.agents[0]
        if message.notes["again"]:
            self.agent_restarts += 1
            said = text.removeprefix(f"{agent}: ")
            self.supervisor.warn_once(f"{name}: {said}", f"{agent} begins anew after {name}: {text}\n{text_of(message, 'trace')}")
            return
        if name in ERRORS and name != "ValueError":
            error: BaseException = ERRORS[name](text)
        else:
            what = f"{agent}: run_one_episode" if index >= 0 else f"{worker}: building its agents"
            error = AgentFailed(f"{what} raised {name}: {text.removeprefix(f'{agent}: ')}")
        error.__cause__ = RemoteError(f"in {worker}:\n{text_of(message, 'trace')}")
        if index < 0:  # those that are still being built would fail likewise, and tell it to the next run
            for other in self.workers:
                if other.taken and not other.up:
                    self.supervisor.end(other)
        self._failed(agent, error)

    def _take_in(self, requests: bool = True) -> None:
        """Counts what has happened and puts requests into the queues, in the order of the workers.

        Args:
            requests: False after a stop: nobody waits for them any more.
        """
        for worker in self.workers:
            while worker.inbox:
                message = worker.inbox.popleft()
                notes: Any = message.notes
                if message.kind is Kind.EVENT:
                    self._events(worker, message)
                if "turn" in notes:
                    if "steps" in notes:
                        self._count(worker, notes["steps"], notes["time"])
                    if "late" in notes:
                        for name, wrapper in self.crew.wrappers.items():
                            for queue in (wrapper.predictions, wrapper.trainings):
                                queue.counters.late += notes.get(f"late.{queue.kind}.{name}", 0)
                    self._count_served(notes)
                    self.crew.bad_values += notes.get("bad", 0)
                    for name in self.crew.wrappers:
                        if f"learned.{name}" in notes:
                            self.crew.rows.count(name, notes[f"learned.{name}"], notes[f"dropped.{name}"])
                    if "stop" in notes:
                        self.crew.request_stop()
                if message.kind is Kind.EVENT or not requests:
                    continue
                wrapper = self.crew.wrappers.get(message.task)
                ticket = Ticket(worker, None)
                ticket.waiter = (worker.incarnation, message.request, notes["n"])
                ticket.rows = message.rows
                ticket.state = "learner" in notes
                try:
                    if wrapper is None:
                        raise WireError(f"a request for task {message.task!r}; expected one of {', '.join(self.crew.wrappers)}")
                    if message.kind is Kind.PREDICT:
                        queue = wrapper.predictions
                        names = [spec.name for spec in queue.specs]
                        if "block" in notes:
                            message.arrays = dict(self.link.rows(worker, queue.specs, tuple(notes["block"]), message.rows))
                        if message.arrays.keys() != set(names):
                            raise WireError(f"a request for task {message.task!r} with {', '.join(message.arrays)}; expected "
                                            f"{', '.join(names)}")
                        queue.put(ticket, tuple(message.arrays[name] for name in names))
                    else:
                        # Copies: a frame is read-only, and tensors are made of these.
                        dropped = wrapper.trainings.put(ticket, {name: value.copy() for name, value in message.arrays.items()})
                        if dropped:
                            self._wake(dropped)
                except Exception as error:  # noqa: BLE001  the sender's fault, and to be told to it alone
                    ticket.error = error
                    self._wake([ticket])

    def _count(self, worker: WorkerHandle, steps: int, time_steps: int) -> None:
        crew = self.crew
        if worker.agents[0].env is not None:
            worker.agents[0].env.time_steps += time_steps
        crew.env_steps += steps
        with self._called(worker.agents[0]):
            for call in self._counting:
                call(worker.agents[0])
            if crew._stop is not None and crew._stop(crew):
                crew.request_stop()

    def _events(self, worker: WorkerHandle, message: Message) -> None:
        arrays, first = message.arrays, worker.agents[0].index
        if "alive" in arrays:
            alive, parked = set(arrays["alive"].tolist()), set(arrays["parked"].tolist())
            self.agents = [a for a in self.agents if a not in worker.agents or a.index in alive]
            for agent in worker.agents:
                if agent.index in parked and agent not in self.parked:
                    self.parked.append(agent)
                    if agent.quota_steps is not None:
                        agent.quota_steps = 0
                elif agent.index not in parked and agent in self.parked:
                    self.parked.remove(agent)
        if "steps" in arrays:
            for agent, steps in zip(worker.agents, arrays["steps"].tolist(), strict=True):
                agent.steps = steps
        if "count.return" in arrays:
            for value, length in zip(arrays["count.return"].tolist(), arrays["count.length"].tolist(), strict=True):
                self.crew.count_episode(np.array(value) if isinstance(value, list) else value, length)
        if "episode.agent" not in arrays:
            return
        columns = (arrays[f"episode.{name}"].tolist() for name in ("agent", "env", "return", "length"))
        for index, env, episode_return, length in zip(*columns, strict=True):
            agent = worker.agents[index - first]
            value = np.array(episode_return) if isinstance(episode_return, list) else episode_return
            agent.env.episode_return, agent.env.episode_length, agent.env.env_index = value, length, env
            with self._called(agent):
                for call in agent.env.post_episode:
                    call(agent, False)

    def _count_served(self, notes: Mapping[str, Any]) -> None:
        """What replicas have answered."""
        for name, wrapper in self.crew.wrappers.items():
            for what in ("requests", "rows", "batches", "errors"):
                n = notes.get(f"served.{what}.{name}", 0)
                if n:
                    counters = wrapper.predictions.counters
                    setattr(counters, what, getattr(counters, what) + n)

    def _wake(self, tickets: list[Ticket]) -> None:
        """In sync mode those who learn hear when the run goes on: agents would act at once, some before and some after what comes
        between."""
        for ticket in tickets:
            if ticket.queue is not None:
                ticket.queue.counters.requests += ticket.waiter[2] - 1  # of as many agents
        if self.sync and tickets and tickets[0].queue is not None and tickets[0].queue.kind == "learn":
            self._lesson_replies += tickets
        else:
            self._reply(tickets)

    def _reply(self, tickets: list[Ticket]) -> None:
        tickets = [t for t in tickets if not t.abandoned and t.waiter[0] == t.agent.incarnation]
        last = {ticket.agent: ticket for ticket in tickets}
        for ticket in tickets:
            worker, request = ticket.agent, ticket.waiter[1]
            more = {} if last[worker] is ticket else {"more": True}  # the agents of a worker go on together
            if ticket.error is not None:
                self._send(worker, Kind.FAILED, request=request, notes={"type": type(ticket.error).__name__, **more},
                           arrays={"text": as_text(ticket.error)})
                continue
            rows = slice(ticket.start, ticket.start + ticket.rows)
            arrays = {}
            for name, value in ticket.out.items():
                array = np.asarray(value)
                arrays[name] = array[rows] if array.ndim else array
            notes = {"version": ticket.version, "learns": ticket.queue.task.learns, **more}
            self._send(worker, Kind.REPLY, request=request, rows=ticket.rows, arrays=arrays, notes=notes)

"""A worker process: many cooperative agents of a robot, whose tasks are in the robot's process.

The agents' requests gather in the same queues as everywhere. When all of them wait, every open batch leaves as one message, and
the last message of such a turn says so; replies wake the agents again. The worker obeys the robot's orders and never answers for
itself: if the robot's process ends, in whatever way, so does this one (`parl_like.process`).
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import cloudpickle
import numpy as np

from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.messages import Frames, Kind, Message, pack, pack_error, pack_state, unpack, unpack_state
from parl_like.drivers.workers.shared_parameters import Parameters
from parl_like.drivers.workers.shared_rows import Blocks
from parl_like.drivers.workers.worker_agents import COUNTS, ROUNDS, Recipe, Request, WorkerPool
from parl_like.learning.span import move_ends
from parl_like.run.agent_states import buffer_states
from parl_like.tasks.acting_copies import tensors_of
from parl_like.tasks.training_queue import joined_rows
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Array

ASIDE = ("trace", "state", "load", "settle", "move_ends")
"""Orders after which agents that rest between two runs go on resting."""

SIGN_OF_LIFE = 1.0
"""Seconds after which a worker that goes on by itself says that it is there."""


class ReplicaRounds:
    """The predictions of replicas since the robot was heard.

    Attributes:
        n: How many there were.
        free: How many there may be before the robot has its turn.
        ended: The episodes that had ended at each of them.
    """

    def __init__(self) -> None:
        self.n, self.free = 0, ROUNDS
        self.ended: list[int] = []

    def add(self, ended: int) -> None:
        """Note another one, at which so many episodes had ended."""
        self.n += 1
        self.ended.append(ended)

    def take_turns(self, episodes: int) -> Array:
        """Return in which round each of the episodes ended, int32 [n], and begin a new list of them."""
        turns = np.searchsorted(self.ended, np.arange(episodes), "right").astype(np.int32)
        self.ended.clear()
        return turns


class Worker:
    """A pool, what the robot has told it, and what the robot was told.

    Args:
        send: Carries one message, a list of frames, to the robot; in order, once.
        halves: Whether it carries them at once, so that half of the agents may be answered while the others act (async).
    """

    def __init__(self, recipe: Recipe, send: Callable[[Frames], object], halves: bool = False) -> None:
        self.recipe, self._send, self._halves = recipe, send, halves and not recipe.sync
        self.seen = 0  # messages of the robot taken in
        self.turned = -1  # how many of them at the last turn
        self.rounds = ReplicaRounds()  # served here since then
        self.more = False  # another reply comes with the last one
        self.resting = False  # the run is over, and no replica is asked until there is another
        self.steps = self.time_steps = 0  # reported so far
        self.told: Any = (0, 0)  # how many parked and living agents the robot knows of
        self.tell_steps = False
        self.blocks: Blocks | None = None
        self.areas: dict[str, Parameters] = {}
        self.spoke = 0.0
        self.woken = monotonic()  # when the first message of this turn was taken in
        self._copying: threading.Thread | None = None

    def send(self, kind: Kind, **parts: Any) -> None:
        """Send a message to the robot; `parts` as for `parl_like.drivers.messages.pack`."""
        self._send(pack(kind, **parts))
        self.spoke = monotonic()

    def report_failure(self, agent: int, error: BaseException, again: bool = False) -> None:
        """Tell the robot what an agent has raised, by its index (−1: all that are being made), and whether it begins anew."""
        self.send(Kind.FAILED, notes={"agent": agent, "type": type(error).__name__, "again": again}, arrays=pack_error(error))

    def begin(self) -> bool:
        """Makes the agents, and says hello; False where that failed, which the robot was told."""
        try:
            self.pool = WorkerPool(self.recipe, self.report_failure)
        except BaseException as error:  # noqa: BLE001  whatever the user's code raises is the robot's to report
            self.report_failure(-1, error)
            return False
        self.driver = self.pool.driver
        if self.recipe.shared:
            self.blocks = Blocks(self.recipe.shared, self.recipe.name)
            for wrapper in self.pool.wrappers.values():
                if wrapper.task.serve == "central":
                    wrapper.predictions.blocks.make = self.blocks.make
        self.send(Kind.HELLO)
        return True

    def _time_steps(self) -> int:
        return sum(agent.env.time_steps for agent in self.pool.agents if agent.env is not None)

    # --------------------------------------------------------------------------------------------------------------- a turn

    def turn(self) -> bool:
        """Runs the agents until all wait; sends what they wait for, and what has happened since the last turn. The last message
        says so.

        A replica waits for agents that wait for updates (async): these set the pace then, and a batch of all agents costs little
        more than one of those that come first.

        Returns:
            True: some of them waited for a replica, which has answered, so there is more to do before the robot is heard; at most
                `ReplicaRounds.free` times.
        """
        driver = self.driver
        if self.seen == self.turned or self.more:
            return False  # only parameters have come, or some of several replies
        if not self.resting:
            driver.rouse()
        self.pool.turns.begin()
        if self._halves:
            driver.run_in_halves(self._ask)
        else:
            driver.run_ready()
        here, batches = driver.waiting_here(), driver.batches()
        # One that rests again in each turn does not keep the others from their replica.
        paused = self.rounds.n >= self.rounds.free or self.resting if here else driver.rests()
        held = bool(here) and not paused and not self.recipe.sync and driver.answers_come()
        if here and not paused and not held:
            self.rounds.add(len(self.pool.statistics.ended))
            for request in batches:
                self._ask(request)
            driver.wake(max(here, key=lambda queue: queue.rows).serve())
            if monotonic() - self.spoke > SIGN_OF_LIFE:
                self.send(Kind.EVENT)
            return True
        self.rounds.n, self.turned = self.rounds.n if held else 0, self.seen
        notes = self._counts()
        if paused:
            notes["paused"] = True
        notes["pace"], notes["took"] = driver.pace(), monotonic() - self.woken
        events, episodes = self._events()
        if events or episodes or not batches:
            self.send(Kind.EVENT, arrays=episodes, notes=events if batches else events | notes)
        for i, request in enumerate(batches, 1):
            self._ask(request, notes if i == len(batches) else {})
        return False

    def _ask(self, asked: Request, notes: Mapping[str, object] = {}) -> None:  # noqa: B006  it is read alone
        request, queue, batch = asked
        n = batch.rows
        said: dict[str, object] = {**notes, "n": len(batch.tickets)}
        number = self.blocks.number_of(batch.block) if self.blocks is not None and batch.block is not None else None
        if queue.kind == "learn":
            rows = joined_rows(batch)
            said["update"] = [max(t.steps for t in batch.tickets), int(any(t.scheduled for t in batch.tickets))]
        elif number is None:
            rows = {name: column[:n] for name, column in batch.block.arrays.items()}
        else:
            rows, said["block"] = {}, [number, batch.block.capacity]
        self.send(Kind.PREDICT if queue.kind == "predict" else Kind.LEARN, task=queue.task.name, request=request, rows=n,
                  arrays=rows, notes=said)

    def _counts(self) -> dict[str, object]:
        """Return what is to be added to the robot's counts: steps, and by queue and task what the queues have counted here."""
        pool = self.pool
        notes: dict[str, object] = {"turn": self.seen}
        if pool.env_steps != self.steps:
            time_steps = self._time_steps()
            notes["steps"], notes["time"] = pool.env_steps - self.steps, time_steps - self.time_steps
            self.steps, self.time_steps = pool.env_steps, time_steps
        done = pool.statistics
        if done.episodes_cut:
            notes["cuts"], done.episodes_cut = done.episodes_cut, 0
        if done.bad_values:
            notes["bad"], done.bad_values = done.bad_values, 0
        if pool.said:
            notes["said"], pool.said = "\n".join(pool.said), []
        if read := pool.reads.take():
            notes["read"] = "\n".join(read)
        for name, rows in done.rows.take().items():
            notes[f"rows {name}"] = list(rows)
        for queue in self.driver.queues:
            counted = [getattr(queue.counters, name) for name in COUNTS]
            if any(counted):
                notes[f"{queue.kind} {queue.task.name}"] = counted
                queue.counters.load_state_dict(dict.fromkeys(COUNTS, 0))
        if pool.watching.said:
            notes["watched"] = sorted(pool.watching.said)
            pool.watching.said.clear()
        if pool.wants_stop:
            notes["stop"], pool.wants_stop = True, False
            for agent in pool.agents:
                if agent.quota.steps is None:
                    agent.go_on()  # all wait for the robot, which knows now
        return notes

    def _events(self) -> tuple[dict[str, object], dict[str, Array]]:
        """Return what has changed of the agents, and the columns of their episodes."""
        notes: dict[str, object] = {}
        # Their numbers suffice: between two orders agents only park and end.
        parked, alive = self.driver.parked, self.driver.agents
        if (len(parked), len(alive)) != self.told:
            notes["parked"], notes["alive"] = [agent.index for agent in parked], [agent.index for agent in alive]
            notes["heard"], self.told = self.seen, (len(parked), len(alive))
        if self.tell_steps:
            notes["agent_steps"], self.tell_steps = [agent.steps for agent in self.pool.agents], False
        kinds = {"agent": np.int32, "env": np.int64, "return": np.float64, "length": np.int64}
        columns = zip(*self.pool.statistics.ended, strict=True)
        episodes = {name: np.array(column, kind) for (name, kind), column in zip(kinds.items(), columns, strict=False)}
        several, turns = bool(self.rounds.ended), self.rounds.take_turns(len(self.pool.statistics.ended))
        if several and episodes:
            episodes["round"] = turns
        self.pool.statistics.ended.clear()
        if self.pool.statistics.parts:
            episodes["parts"] = np.array(self.pool.statistics.parts, np.float64)
            self.pool.statistics.parts.clear()
        return notes, episodes

    # --------------------------------------------------------------------------------------------------------------- orders

    def take(self, frames: Sequence[Any]) -> bool:
        """Obeys one message of the robot; False: the end."""
        message = unpack(frames)
        if message.kind is Kind.STATE:
            self._parameters(message)
            return True
        if self.seen == self.turned:
            self.woken = monotonic()
        self.seen += 1
        self.more = "more" in message.notes
        self.rounds.free = message.notes.get("rounds", ROUNDS)
        order = message.notes["order"] if message.kind is Kind.ORDER else None
        if order not in ASIDE:
            self.resting = False
        if order is None:
            self.driver.answer(message)
            return True
        self.told = None  # an order may make agents go on, and park where they had
        if order == "end":
            for agent in self.pool.agents:
                if agent.env is not None:
                    agent.env.close()
            return False
        getattr(self, f"_{order}")(message)
        return True

    def _parameters(self, message: Message) -> None:
        """Take over the parameters of a replica's networks, as they are in the robot's process."""
        acting, notes = self.pool.tasks[message.task].acting, message.notes
        assert acting is not None
        version, updates, number = notes["version"], notes["updates"], notes.get("number")
        if number is not None and message.task not in self.areas:
            self.areas[message.task] = Parameters(self.recipe.shared, message.task, acting.tensors)

        def copy() -> None:
            if number is None:
                acting.publish(tensors_of(unpack_state(message.arrays)), version, updates)
                return
            area = self.areas[message.task]
            if area.holds(number):  # else a later one is on its way
                acting.publish({**acting.tensors, **area.slots[number % 2]}, version, updates, partial(area.holds, number))

        if self._copying is not None:
            self._copying.join()
            self._copying = None
        if self.recipe.sync or number is None or not self.areas[message.task].aside:
            copy()
        else:
            self._copying = threading.Thread(target=copy, name="parameters")
            self._copying.start()

    def _go(self, message: Message) -> None:
        """After a pause."""

    def _pause(self, message: Message) -> None:
        """A run is over: all wait for the next one."""
        self.resting = self.tell_steps = True

    def _limit(self, message: Message) -> Frames:
        """Sets how far the agents named go, -1 for no bound, and returns them."""
        notes, agents, named = message.notes, {agent.index: agent for agent in self.pool.agents}, []
        for index, steps, episodes in zip(notes["agents"], notes["steps"], notes["episodes"], strict=True):
            agent = agents[index]
            agent.quota.steps, agent.quota.episodes = None if steps < 0 else steps, None if episodes < 0 else episodes
            named.append(agent)
        for agent in self.pool.agents:
            for helper in agent.helpers.values():
                helper.collecting = notes["collecting"]
        return named

    def _move_ends(self, message: Message) -> None:
        move_ends(message.notes["key"], message.notes["ends"])

    def _start(self, message: Message) -> None:
        self._limit(message)
        self.pool.lifecycle.start()

    def _resume(self, message: Message) -> None:
        self.driver.resume(self._limit(message))

    def _interrupt(self, message: Message) -> None:
        self.driver.halt(self.pool.agents, AgentSignal.INTERRUPT)

    def _stop(self, message: Message) -> None:
        """Ends all agents; they can be started again."""
        self.pool.lifecycle.halt()
        self.pool.wants_stop = False
        self.tell_steps = True

    def _settle(self, message: Message) -> None:
        """After an interruption: updates whose replies have come."""
        self.pool.lifecycle.settle()
        self.tell_steps = True

    def _answer(self, state: object) -> None:
        self.send(Kind.STATE, arrays=pack_state(state), notes={"answer": self.seen})

    def _digests(self) -> dict[str, str]:
        trace = self.pool.trace
        return {} if trace is None else {str(i): digest.hex() for i, digest in trace.digests.items()}

    def _trace(self, message: Message) -> None:
        self._answer(self._digests())

    def _state(self, message: Message) -> None:
        pool = self.pool
        with pool.reads.paused():
            self._answer({"agents": {str(agent.index): agent.state_dict() for agent in pool.agents}, "trace": self._digests(),
                          "buffers": buffer_states(pool.agents, pool.buffers, message.notes["buffers"])})

    def _load(self, message: Message) -> None:
        state = unpack_state(message.arrays)
        try:
            self.driver.states.load_state_dict({"agents": state["agents"],
                                         **{f"buffer.{name}": buffer for name, buffer in state["buffers"].items()}})
        except AgentFailed as error:  # another worker would fail likewise
            self.report_failure(self.pool.agents[0].index, error)
            return
        self.time_steps = self._time_steps()
        for name, learns in state["learns"].items():
            self.pool.tasks[name].learns = learns
        if self.pool.trace is not None:
            self.pool.trace.digests = {int(i): bytes.fromhex(d) for i, d in state["trace"].items()}
        self._answer({})


def work(payload: bytes, descriptor: int) -> None:
    """The life of one worker, in a process of its own.

    Args:
        payload: Module path and a recipe, by cloudpickle, from the process that started this one; it never comes over the socket.
        descriptor: Of its end of the socket to the robot.
    """
    import torch

    path, packed = cloudpickle.loads(payload)
    sys.path[:] = path
    torch.set_num_threads(1)
    live(cloudpickle.loads(packed), FrameStream(socket.socket(fileno=descriptor), waits=True))


def live(recipe: Recipe, stream: FrameStream) -> None:
    """Make the agents, and obey the robot until it says that this is the end, or has ended itself."""
    worker = Worker(recipe, stream.send, halves=True)
    going = worker.begin()
    with suppress(EOFError):
        while going:
            for frames in stream.receive(wait=not worker.turn()):
                going = going and worker.take(frames)
    stream.close()

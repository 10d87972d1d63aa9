"""Rounds: what is served next, and whom an update waits for. Drivers report events, ask `Rounds.next`, and obey.

Nothing here reads a clock, starts a thread or serves a batch. Times come from the caller, in `perf_counter` seconds.

**Requests.** An agent asks a task for a prediction, or sends it rows to learn from (an *update*). Each task has a queue for
either kind. The queues are where requests are reported: what was put and not served waits.

An agent *learns* when one of its helpers can send updates, by a schedule or by hand.

**When a batch closes.** `BatchClosing.due` says it: with enough rows, after the patience of its rule, or as soon as nobody could
still come. For a prediction those are the agents that run now (`acting`). For an update in sync mode it is everybody, until a
round begins. For one in async mode it is any learning agent that does not wait for an update itself; where no agent learns by a
schedule, whoever runs or waits for a prediction.

**Which queue is next.** Of the queues whose oldest batch is closed, the one with most waiting rows; ties go in the order of
tasks. Rows count once more each time another queue is served first, so no queue waits for ever behind a fuller one.

**Sync mode.** Agents act (the *unroll*), then the tasks learn (the *round*), by turns, so parameters stay the same in an unroll.
The round begins when no learning agent is left that an update waits for. Predictions that are due then stay behind it. In the
round every waiting update is served, task by task, those that come meanwhile, too. Who was answered acts only when all are
served. The round ends an iteration of the run. An update that its own rule closes before (`min_rows`, `max_wait`) is served in
the unroll, and ends the iteration, too.

**Several at once.** Drivers with threads serve several queues at the same time, each by one thread (`serving`). They ask again
at once after each batch that they give out. A round is done when its last update is served, not given out.

**Whom an update waits for.** For learning agents that act: that run, rest, or wait for a prediction. It does not wait for those
that wait for updates, are parked or have ended, and never for agents that do not learn. Of those that act it waits for two kinds.
An agent that has taken fewer steps since its own last update than the update's sender would fall behind. An agent whose schedule
has an update due will send it soon, so both can be learned from together. The second kind is not waited for by an update that its
sender asked for with `learn()`: by hand there is no schedule that others keep step with.

**Async mode.** An update waits for nobody, unless its rule names `min_rows` or `max_wait`. There are no unrolls; when nobody acts
and nothing is due, what still waits to be learned from is served as in a round.

**Bounded queues** (`max_queued`) change nothing of this. The sender of one update too many waits for it, as who calls `learn()`
does, or the oldest update is dropped and its sender is answered.

**At a stop** (`at_stop`) updates are served as if the run went on until an agent would act. So a run may be divided into many.

**Those who rest.** An agent that asks nothing may rest, so that others have a turn. It goes on when something else was served, or
when an update waits for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from parl_like.interfaces import AgentPort, LearnerProgress
from parl_like.tasks.queues import RequestQueue
from parl_like.tasks.tickets import INFINITE, Ticket

Agent = TypeVar("Agent", bound=AgentPort)


class Learner(Protocol):
    """An agent, or the agents of one worker together."""

    @property
    def learns(self) -> bool:
        """Return whether it may come to send updates before it is answered."""

    def progress(self) -> LearnerProgress | None:
        """Return its progress; None: nobody of it acts."""


class Serve(NamedTuple):
    """Serve the oldest batch of this queue."""

    queue: RequestQueue


class RoundDone(NamedTuple):
    """Every update of the round is served: agents may go on."""


class Wait(NamedTuple):
    """Nothing is to be served before the time `until`, unless something happens first; infinity: the clock changes nothing."""

    until: float


ROUND_DONE = RoundDone()
NOTHING = Wait(INFINITE)
"""Only an event changes anything."""


def waits_for(steps: int, scheduled: bool, progress: LearnerProgress) -> bool:
    """Return whether an update waits for a learning agent that acts.

    Args:
        steps: Of the update's sender since its update before, at least 1.
        scheduled: Whether a schedule asked for the update; else its sender did, by hand.
    """
    return progress.steps < steps or (scheduled and progress.due)


class Rounds:
    """See above. One instance serves one driver; `begin` starts a run.

    Attributes:
        sync: Updates wait for rounds.
        queues: Of all tasks in their order, predictions and updates by turns.
        updates: Those queues of them that hold updates.
        learners: Learning agents that act: that run, rest, or wait for predictions. Updates may wait for them.
        acting: How many run now, so that a request may come. Drivers that ask only when nobody runs leave it 0.
        resting: Whether somebody rests.
        in_round: A round has begun and is not over.
        holding: A round is over, and a driver keeps its replies until the next unroll: no update is served before that.
        serving: Queues of which a batch is being served at this moment.
    """

    def __init__(self) -> None:
        self.serving: Container[RequestQueue] = ()
        self.begin(True, [], [], False)

    def begin(self, sync: bool, queues: Sequence[RequestQueue], learners: Iterable[Learner], any_learns: bool = True) -> None:
        """A run begins.

        Args:
            learners: Those that learn, which all run.
            any_learns: Whether any agent does; else any may come to learn by hand.
        """
        self.sync, self.queues = sync, list(queues)
        self.updates = [queue for queue in queues if queue.kind == "learn"]
        self._predictions = [queue for queue in queues if queue.kind != "learn"]
        self._any_learns = any_learns
        self.learners: set[Learner] = set(learners)
        self.acting = 0
        self.resting = self.in_round = self.holding = False
        self._serve = {queue: Serve(queue) for queue in self.queues}  # made once: a named tuple costs as much as the choice
        self._due: list[RequestQueue] = []  # what could have been served when `next` was asked last

    # --------------------------------------------------------------------------------------------------------------- events

    def running(self, agent: Learner) -> None:
        """The agent begins or goes on: after a pause, or an update that it waited for."""
        if agent.learns:
            self.learners.add(agent)

    def waits(self, agent: Learner) -> None:
        """The agent waits for an update."""
        self.learners.discard(agent)

    parked = ended = waits
    """The agent will ask nothing, until it runs again."""

    def served(self, queue: RequestQueue) -> None:
        """A batch of this queue was served, or given to a thread that serves it, after `next` said so."""
        if len(self._due) > 1 and not (self.in_round and queue.kind == "learn"):
            self._passed(queue)

    def _passed(self, best: RequestQueue) -> None:
        """Others that could have been served have been passed by once more."""
        for queue in self._due:
            queue.passed += 1
        best.passed = 1
        self._due = []

    # ------------------------------------------------------------------------------------------------------------- questions

    def next(self, now: float) -> Serve | RoundDone | Wait:
        """Return what a driver shall do at the time `now`. Asked again before something happens, it says the
        same; but it says once that a round is done."""
        if self.in_round:
            for queue in self.updates:
                if queue.batches and queue not in self.serving:
                    return Serve(queue)
            if self.sync and any(queue in self.serving for queue in self.updates):
                return NOTHING
            self.in_round = False
            return ROUND_DONE
        until, asked, due = INFINITE, False, []
        for queue in self._predictions if self.holding else self.queues:
            if queue.rows:
                if queue.kind == "learn":
                    asked = True
                left = self._due_in(queue, now)
                if left <= 0:
                    due.append(queue)
                elif left < until:
                    until = left
        self._due = due
        if due:
            best = due[0] if len(due) == 1 else max(due, key=lambda queue: queue.rows * queue.passed)
            if not (asked and self.sync and best.kind == "predict") or self.update_waits():
                return self._serve[best]
            if len(due) > 1:
                self._passed(best)  # the round takes its turn
        elif not asked or ((self.acting or self.resting or self._predicting()) and (not self.sync or self.update_waits())):
            return Wait(now + until)
        for queue in self.updates:
            if queue.batches and queue not in self.serving:
                self.in_round = True
                return Serve(queue)
        return Wait(now + until)

    def at_stop(self, now: float) -> Serve | None:
        """Return what is still served after a request to stop: an update, as long as nothing else would come before it; None:
        nothing, all that waits does so until the run goes on. In async mode, which promises no order, any update that is due."""
        if not self.sync:
            return next((Serve(queue) for queue in self.updates if queue.rows and self._due_in(queue, now) <= 0), None)
        step = self.next(now)
        return step if isinstance(step, Serve) and step.queue.kind == "learn" else None

    def end_iterations(self, agents: Iterable[Agent], parked: Container[Agent]) -> bool:
        """Return whether rounds end the iterations of a run: in sync mode, as long as somebody learns that is not parked. Else a
        driver ends them, after so many batches or seconds."""
        return self.sync and any(agent.learns and agent not in parked for agent in agents)

    def _due_in(self, queue: RequestQueue, now: float) -> float:
        """Return the seconds until the queue's oldest batch closes (`RequestQueue.due`); infinity while one is being served."""
        if queue in self.serving:
            return INFINITE
        could_come = self.acting > 0 if queue.kind == "predict" else self._update_can_still_come()
        return queue.due(now, True) if could_come and queue.rows < queue.closing.enough else 0.0

    def _update_can_still_come(self) -> bool:
        """Return whether somebody is left whose update could join, and is to be waited for."""
        if self.sync:
            return not self.in_round
        if self._any_learns:
            return any(agent.learns for agent in self.learners)
        return self.acting > 0 or any(other.rows or other in self.serving for other in self._predictions)

    def _predicting(self) -> bool:
        """Return whether a prediction is being served: its agents will act again."""
        return any(queue in self.serving for queue in self._predictions)

    def update_waits(self) -> bool:
        """Return whether an update waits for anybody, or none is there; else a round may begin."""
        updates = self._open_updates()
        if not updates:
            return True
        # What waits for an agent is the update that is furthest, or any that a schedule asked for: one question for all of them.
        steps, scheduled = max(update.steps for update in updates), any(update.scheduled for update in updates)
        for agent in self.learners:
            if agent.learns and (progress := agent.progress()) is not None and waits_for(steps, scheduled, progress):
                return True
        return False

    def _open_updates(self) -> list[Ticket]:
        """Return the updates that wait."""
        return [ticket for queue in self.updates for batch in queue.batches for ticket in batch.tickets]

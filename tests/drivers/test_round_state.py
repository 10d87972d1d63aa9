"""The phases of a round under the threads driver: what may follow what, and what the robot hears."""

import threading
from types import SimpleNamespace

import pytest

from parl_like.drivers.acting_agents import OPEN, SERVED, WAITED, ActingAgents
from parl_like.drivers.round_state import NEXT, RoundPhase, RoundState
from parl_like.tasks.rounds import NOTHING, Rounds
from parl_like.tasks.tickets import INFINITE, Ticket


class Updates:
    """A queue of updates that wait for nobody."""

    kind, rows, batches, passed = "learn", 0, (), 1
    closing = SimpleNamespace(enough=INFINITE)

    def put(self):
        self.rows, self.batches = 1, (SimpleNamespace(tickets=[Ticket(None, None)]),)

    def due(self, now, can_still_come):
        return INFINITE if can_still_come else 0.0

    def serve(self):
        self.rows, self.batches = 0, ()


class Player:
    def __init__(self, learns):
        self.learns = learns

    def count_progress(self):
        return None


def state_of(sync=True):
    rounds, queue = Rounds(), Updates()
    rounds.begin(sync, [queue], [], False)
    return RoundState(rounds), queue


def test_a_round_runs_through_all_phases():
    state, queue = state_of()
    seen = [state.phase]
    state.ask()
    queue.put()
    seen.append(state.phase)
    assert state.next(0.0).queue is queue
    seen.append(state.phase)
    assert state.rounds.in_round
    queue.serve()
    state.rounds.serving = {queue}
    assert state.next(0.0) is NOTHING and state.phase is RoundPhase.ROUND  # its last update is being served
    state.rounds.serving = ()
    assert state.hold(["reply"])
    assert state.next(0.0) is NOTHING
    seen.append(state.phase)
    assert not state.rounds.in_round and not state.news.locked()
    assert not state.unroll_may_begin and state.hear() and not state.hear() and state.unroll_may_begin
    assert state.next_unroll() == ["reply"] and state.held == []
    assert seen == list(RoundPhase)
    assert state.phase is RoundPhase.ASKED  # for an update that came meanwhile; a look finds none
    assert state.next(0.0) == NOTHING
    assert state.phase is RoundPhase.UNROLL


def test_at_a_stop_a_round_waits_and_its_replies_with_it():
    state, queue = state_of()
    queue.put()
    state.ask()
    state.stopping = True
    assert state.next(0.0) is NOTHING and state.phase is RoundPhase.ASKED
    state.closing = True
    assert state.next(0.0).queue is queue and state.phase is RoundPhase.ROUND and state.hold(["first"])
    state.closing = False
    assert state.hold(["second"]) and state.next(0.0) is NOTHING and state.phase is RoundPhase.ROUND
    assert state.next_unroll() == ["first", "second"]  # given up
    assert state.phase is RoundPhase.ASKED and not (state.untold or state.rounds.in_round)


def test_a_round_whose_last_batch_was_served_at_a_stop_is_over_when_anybody_looks():
    for closing in (True, False):
        state, queue = state_of()
        queue.put()
        state.ask()
        assert state.next(0.0).queue is queue
        state.stopping = True
        queue.serve()
        assert state.hold(["reply"]) and state.next(0.0) is NOTHING
        state.closing, state.stopping = closing, closing  # the end of the run, or the next one
        assert state.next(0.0) is NOTHING and state.phase is RoundPhase.DONE
        assert not state.rounds.in_round


def test_between_a_round_and_the_next_unroll_predictions_alone_are_served():
    state, queue = state_of()
    predictions = Updates()
    predictions.kind = "predict"
    state.rounds.begin(True, [predictions, queue], [], False)
    queue.put()
    state.ask()
    assert state.next(0.0).queue is queue
    predictions.put()
    queue.serve()
    assert state.next(0.0) is NOTHING and state.phase is RoundPhase.DONE
    queue.put()
    assert state.next(0.0).queue is predictions
    predictions.serve()
    assert state.next(0.0) == NOTHING
    state.next_unroll()
    assert state.next(0.0).queue is queue


def test_async_mode_knows_no_rounds():
    state, queue = state_of(sync=False)
    queue.put()
    state.ask()
    assert state.next(0.0).queue is queue
    assert state.phase is RoundPhase.UNROLL and not state.hold(["reply"]) and not state.untold
    assert state.next_unroll() == [] and state.phase is RoundPhase.UNROLL


def test_a_phase_that_cannot_follow_is_refused():
    assert set(NEXT) == set(RoundPhase)
    with pytest.raises(RuntimeError, match="a round goes from UNROLL to ASKED, not to DONE; this is a bug"):
        state_of()[0]._enter(RoundPhase.DONE)


def test_who_stops_acting_matters_to_the_last_batch_and_to_updates():
    rounds = Rounds()
    learner, player = Player(True), Player(False)
    rounds.begin(True, [], [learner], True)
    rounds.acting = 3
    acting = ActingAgents(rounds, threading.Lock())
    assert not acting.leave(player) and rounds.acting == 2
    assert acting.leave(learner) and rounds.learners == set()
    assert acting.leave(player) and rounds.acting == 0
    acting.come(learner)
    assert rounds.learners == {learner} and rounds.acting == 1


def test_when_counting_fails_everybody_is_woken():
    rounds = Rounds()
    tickets = [Ticket(None, threading.Lock(), state=state) for state in (OPEN, WAITED, WAITED)]
    for ticket in tickets:
        ticket.waiter.acquire()
    ActingAgents(rounds, threading.Lock()).fail(tickets)
    assert rounds.acting == 2 and all(t.state == SERVED and not t.waiter.locked() for t in tickets)

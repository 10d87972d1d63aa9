"""The phases of a round under the threads driver: what may follow what, and what the robot hears."""

import threading
from types import SimpleNamespace

import pytest

from parl_like.drivers.acting_agents import OPEN, SERVED, WAITED, ActingAgents
from parl_like.drivers.round_state import NEXT, RoundPhase, RoundState
from parl_like.tasks.rounds import Rounds
from parl_like.tasks.tickets import Ticket


class Updates:
    """A queue of updates that wait for nobody."""

    kind, rows, batches = "learn", 0, ()

    def put(self):
        self.rows, self.batches = 1, (SimpleNamespace(tickets=[Ticket(None, None)]),)

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
    state.begin()
    seen.append(state.phase)
    assert state.rounds.in_round
    queue.serve()
    assert state.hold(["reply"])
    state.end()
    seen.append(state.phase)
    assert not state.rounds.in_round and not state.news.locked()
    assert not state.unroll_may_begin and state.hear() and not state.hear() and state.unroll_may_begin
    assert state.next_unroll() == ["reply"] and state.held == []
    assert seen == list(RoundPhase)
    assert state.phase is RoundPhase.ASKED  # for an update that came meanwhile; a look finds none
    state.begin()
    assert state.phase is RoundPhase.UNROLL


def test_a_stop_ends_a_round_in_the_middle():
    state, queue = state_of()
    queue.put()
    state.ask()
    state.stopping = True
    state.begin()
    assert state.phase is RoundPhase.ASKED
    state.closing = True
    state.begin()
    assert state.phase is RoundPhase.ROUND and state.hold(["first"])
    state.closing = False
    assert not state.hold(["second"]) and state.untold  # given at once
    assert state.next_unroll() == ["first"]
    assert state.phase is RoundPhase.ASKED and not (state.untold or state.rounds.in_round)


def test_async_mode_knows_no_rounds():
    state, queue = state_of(sync=False)
    queue.put()
    state.ask()
    state.begin()
    assert state.phase is RoundPhase.UNROLL and not state.hold(["reply"]) and not state.untold
    assert state.next_unroll() == [] and state.phase is RoundPhase.UNROLL


def test_a_phase_that_cannot_follow_is_refused():
    assert set(NEXT) == set(RoundPhase)
    with pytest.raises(RuntimeError, match="a round goes from UNROLL to ASKED, not to DONE; this is a bug"):
        state_of()[0].end()


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

"""When a batch closes: every corner of the one rule, first with a clock of ours, then under every driver.

In the second part no agent depends on the machine's speed: one acts (without asking) until another has its reply, or until a stop
that would come first if the rule were broken.
"""

import sys
import threading
from functools import partial
from time import perf_counter, sleep

import gymnasium as gym
import numpy as np
import pytest
from transport_fakes import Learner, echo_task, play, row, update

from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.tickets import INFINITE, Ticket
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.action_codec import ActionCodec

DRIVERS = ["cooperative", "threads", *(["processes"] if sys.platform == "linux" else [])]
EVERYBODY, NOBODY = True, False
"""Whether somebody is left who could still come."""


def queue_of(kind, rows=(), sync=True, patience=None, **rule):
    """A queue in which requests of so many rows wait, the first of each batch since time 100; a new run has begun."""
    rule = BatchRule(**rule)
    wrapper = ComputationWrapper(echo_task(predict_rule=rule, training_rule=rule))
    queue = getattr(wrapper, kind)
    queue.begin(sync, patience)
    for n in rows:
        ticket = Ticket("agent", None)
        ticket.rows = n
        queue.put(ticket, (np.zeros((n, 2)),) if kind == "predictions" else {"obs": np.zeros((n, 2))})
    for batch in queue.batches:
        batch.born = 100.0
    return queue


def test_actions_are_listed_only_where_a_single_row_was_asked_for():
    """Who asks for rows takes them as an array. Floats are rounded to what is stored in either case."""
    queue = queue_of("predictions")
    queue.codec = ActionCodec(gym.spaces.Box(-1, 1, (1,), np.float32))
    many, one = Ticket("agent", None, rows=2), Ticket("agent", None)
    for tickets, acts in (([many], None), ([many, one], 3), ([one], 3)):
        out = {"act": np.zeros((3, 1), np.float64)}
        queue.answer(tickets, out, 5)
        assert all((ticket.acts and len(ticket.acts)) == acts and ticket.version == 5 for ticket in tickets)
        assert many.out["act"].dtype == np.float32


both = pytest.mark.parametrize("kind", ["predictions", "trainings"])


@both
def test_nothing_is_due_where_nothing_waits(kind):
    for coming in (EVERYBODY, NOBODY):
        assert queue_of(kind, max_wait=0.0).due(100.0, coming) == INFINITE


@both
def test_a_batch_is_due_when_nobody_is_left_who_could_come(kind):
    for rule in ({}, dict(min_rows=9), dict(max_rows=9), dict(max_wait=5.0), dict(min_rows=9, max_wait=5.0)):
        assert queue_of(kind, [2], **rule).due(100.0, NOBODY) == 0.0
    assert queue_of(kind, [2]).due(1e9, EVERYBODY) == INFINITE


@both
def test_min_rows_close_a_batch_before_everybody_came(kind):
    assert queue_of(kind, [2, 1], min_rows=4).due(1e9, EVERYBODY) == INFINITE
    assert queue_of(kind, [2, 2], min_rows=4).due(100.0, EVERYBODY) == 0.0


@both
def test_max_wait_counts_from_the_first_request(kind):
    queue = queue_of(kind, [1, 1], max_wait=2.0)
    assert [queue.due(now, EVERYBODY) for now in (100.0, 101.5, 102.0, 110.0)] == [2.0, 0.5, 0.0, 0.0]
    queue = queue_of(kind, [1, 1], max_wait=2.0, min_rows=2)
    assert queue.due(100.0, EVERYBODY) == 0.0


@both
def test_max_wait_of_0_waits_for_nobody(kind):
    for rule in ({}, dict(min_rows=50), dict(max_rows=50)):
        assert queue_of(kind, [1], max_wait=0.0, **rule).due(100.0, EVERYBODY) == 0.0


def test_a_prediction_that_is_full_is_due_and_an_update_waits_for_its_round():
    assert queue_of("predictions", [2, 2], max_rows=4).due(100.0, EVERYBODY) == 0.0
    assert queue_of("predictions", [2, 1], max_rows=4).due(100.0, EVERYBODY) == INFINITE
    assert queue_of("trainings", [2, 2], max_rows=4).due(100.0, EVERYBODY) == INFINITE


@both
def test_what_does_not_fit_opens_another_batch_and_a_larger_request_has_one_of_its_own(kind):
    queue = queue_of(kind, [2, 1, 2], max_rows=4)
    assert [batch.rows for batch in queue.batches] == [3, 2]
    queue = queue_of("trainings", [2, 9, 1], max_rows=4)
    assert [batch.rows for batch in queue.batches] == [2, 9, 1]


def test_an_async_update_waits_for_nobody_unless_its_rule_says_so():
    assert queue_of("trainings", [1], sync=False).due(100.0, EVERYBODY) == 0.0
    assert queue_of("trainings", [1], sync=False, min_rows=2).due(100.0, EVERYBODY) == INFINITE
    assert queue_of("predictions", [1], sync=False).due(100.0, EVERYBODY) == INFINITE


def test_patience_of_a_driver_counts_from_the_batch_before_and_ends_where_a_rule_begins():
    queue = queue_of("predictions", [1], patience=2.0)
    assert queue.due(101.0, EVERYBODY) == 1.0
    queue.serve()
    # What waited while a batch was computed takes the agents that come back from it: else two halves would take turns for ever.
    queue.put(Ticket("agent", None), (np.zeros(2),))
    queue.batches[0].born = 100.0
    free = queue.closing.free_since
    assert [queue.due(free + seconds, EVERYBODY) for seconds in (0.0, 1.5, 2.0)] == pytest.approx([2.0, 0.5, 0.0])
    assert queue_of("predictions", [1], patience=2.0, min_rows=5).due(1e9, EVERYBODY) == INFINITE
    assert queue_of("predictions", [1], patience=2.0, max_wait=7.0).due(100.0, EVERYBODY) == 7.0
    assert queue_of("trainings", [1], patience=2.0).due(1e9, EVERYBODY) == INFINITE


# ------------------------------------------------------------------------------------------------------ under every driver


def sizes(driver, program, n_agents, rule, kind="predict_rule", **options):
    """Rows of the batches that the agents' requests made."""
    task = echo_task(helper=Learner, **{kind: BatchRule(**rule)})
    play(driver, program, n_agents, {"echo": task}, **options)
    return [len(batch) for batch in (task.algorithm.batches if kind == "predict_rule" else task.algorithm.updates_seen)]


def ask(n, agent):
    for i in range(n):
        agent.helpers["echo"].comm.predict(row(agent, i))


def act_while_the_other_asks(folder, kind, agent):
    """Agent 0 acts until agent 1 has had its reply, which it would not get if it had to wait for agent 0."""
    replied = folder / "replied"
    if agent.index == 0:
        end = perf_counter() + 60.0
        while not replied.exists():
            assert perf_counter() < end, "agent 1 waited for agent 0"
            sleep(0.001)
    else:
        comm = agent.helpers["echo"].comm
        if kind == "predict_rule":
            comm.predict(row(agent, 0))
        else:
            comm.learn(update(agent, 2))
        replied.touch()


def apart(driver):
    """Two agents that may act at once: in threads, or in processes of their own. (Greenlets ask when nobody acts.)"""
    from parl_like.drivers.workers.processes import Processes

    return Processes(workers=2) if driver == "processes" else driver


@pytest.mark.parametrize("driver", [name for name in DRIVERS if name != "cooperative"])
@pytest.mark.parametrize("kind", ["predict_rule", "training_rule"])
@pytest.mark.parametrize("rule",
                         [dict(max_wait=0.0), dict(max_wait=0.02, min_rows=50), {},
                          pytest.param(dict(max_wait=0.0, min_rows=50), marks=pytest.mark.slow),
                          pytest.param(dict(min_rows=1), marks=pytest.mark.slow)])
def test_a_clock_or_enough_rows_close_a_batch_while_another_agent_acts(driver, kind, rule, tmp_path):
    """Async: no round is waited for."""
    play(apart(driver), partial(act_while_the_other_asks, tmp_path, kind), 2,
         {"echo": echo_task(helper=Learner, **{kind: BatchRule(**rule)})},
         mode="async")


@pytest.mark.parametrize("driver", DRIVERS)
def test_max_wait_of_0_never_waits_for_the_clock(driver):
    """400 predictions in turn of one agent, beside one that has ended: 200 s, were there a nap of half a second anywhere."""
    begin = perf_counter()
    served = sizes(apart(driver), lambda agent: ask(400 * agent.index, agent), 2, dict(max_wait=0.0, min_rows=50), mode="async")
    assert served == [1] * 400 and perf_counter() - begin < 150.0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_min_rows_wait_until_nobody_is_left(driver, mode):
    """3 agents of 1, 2 and 3 questions: each waits for all that are still there, though 50 rows never come."""
    assert sizes(driver, lambda agent: ask(1 + agent.index, agent), 3, dict(min_rows=50), mode=mode) == [3, 2, 1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_batch_never_has_more_than_max_rows(driver):
    served = sizes(driver, partial(ask, 10), 5, dict(max_rows=2))
    assert sum(served) == 50 and max(served) == 2


def learn_two_rows(agent):
    agent.helpers["echo"].comm.learn(update(agent, 2 if agent.index else 7))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_larger_update_is_a_batch_of_its_own(driver, mode):
    served = sizes(driver, learn_two_rows, 4, dict(max_rows=4), "training_rule", mode=mode)
    assert sum(served) == 13 and sorted(served)[-1] == 7 and all(n <= 4 for n in sorted(served)[:-1])
    if mode == "sync":
        assert sorted(served) == [2, 4, 7]


def act_until_the_update_waits(agent):
    """Agent 1 teaches; agent 0 goes on asking, without being waited for."""
    comm = agent.helpers["echo"].comm
    if agent.index:
        comm.learn(update(agent, 2))
    else:
        ask(20, agent)
        comm.learn(update(agent, 3))


@pytest.mark.parametrize("driver", DRIVERS)
def test_min_rows_of_an_async_update_wait_for_the_learner_that_acts(driver):
    assert sizes(apart(driver), act_until_the_update_waits, 2, dict(min_rows=5), "training_rule", mode="async") == [5]


def test_threads_that_wait_are_told_by_the_last_who_could_have_come():
    """Agent 0 asks only when agent 1 waits, so the batch of both closes by its count and not by a clock."""
    waiting = threading.Event()

    def program(agent):
        if agent.index == 0:
            assert waiting.wait(60.0)
        else:
            waiting.set()
        ask(1, agent)

    assert sizes("threads", program, 2, dict(max_wait=60.0)) == [2]

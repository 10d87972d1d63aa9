"""The cooperative driver alone: the order of serving, calls from outside, and what Ctrl-C leaves."""

import signal
import sys
import traceback
from functools import partial
from itertools import count

import numpy as np
import pytest
from transport_fakes import Echo, Learner, Programmed, echo_task, play, row, update

from parl_like import AgentHelper, Robot
from parl_like.drivers import acting_agents, cooperative, threads
from parl_like.process import child
from parl_like.tasks import queues
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.wrapper import Communicator
from parl_like.values.errors import Interrupted


def robot_of(program, n_agents=1, tasks=None, **options):
    return Robot(tasks=tasks or {"echo": echo_task()}, agent=partial(Programmed, program), n_agents=n_agents, **options)


def ask(task, n, agent):
    comm = agent.helpers[task].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


def order_of_batches(tasks):
    """(task, rows) of every batch, in the order of serving."""
    order = []
    for name, task in tasks.items():
        task.algorithm.before = lambda rows, name=name: order.append((name, len(rows)))
        task.algorithm.during = lambda rows, name=name: order.append((name + " learns", len(rows)))
    return order


def test_the_fullest_queue_is_served_first_and_ties_go_by_task_order():
    tasks = {"low": echo_task(), "high": echo_task()}
    order = order_of_batches(tasks)
    play("cooperative", lambda agent: ask("high" if agent.index else "low", 1, agent), 3, tasks)
    assert order == [("high", 2), ("low", 1)]
    order.clear()
    play("cooperative", lambda agent: ask("high" if agent.index % 2 else "low", 1, agent), 4, tasks)
    assert order == [("low", 2), ("high", 2)]


def test_all_agents_share_every_batch_even_if_a_rule_would_close_it_sooner_by_the_clock():
    task = echo_task(predict_rule=BatchRule(max_wait=0.0))
    play("cooperative", partial(ask, "echo", 30), 5, {"echo": task})
    assert [len(batch) for batch in task.algorithm.batches] == [5] * 30


def test_a_small_queue_is_not_starved_by_a_fuller_one():
    """9 agents ask `low` without end; the one at `high` gets its 20 replies after at most 10 batches each, not never."""
    tasks = {"low": echo_task(), "high": echo_task()}
    order = order_of_batches(tasks)

    def program(agent):
        if agent.index == 0:
            ask("high", 20, agent)
            agent.robot.request_stop()
            return
        for i in count():
            if agent.signal is not None:
                return
            agent.helpers["low"].comm.predict(row(agent, i))

    play("cooperative", program, 10, tasks)
    assert order.count(("high", 1)) == 20
    assert len(order) <= 20 * 11


def test_async_updates_are_not_starved_by_predictions():
    """8 agents ask without end, one waits for each of its updates of one row."""
    tasks = {"echo": echo_task()}
    order = order_of_batches(tasks)

    def program(agent):
        comm = agent.helpers["echo"].comm
        if agent.index == 0:
            for _ in range(10):
                comm.learn(update(agent, 1))
            agent.robot.request_stop()
            return
        for i in count():
            if agent.signal is not None:
                return
            comm.predict(row(agent, i))

    play("cooperative", program, 9, tasks, mode="async")
    assert order.count(("echo learns", 1)) == 10
    assert len(order) <= 10 * 10


def test_async_min_rows_wait_while_others_can_still_come():
    """Agents 0, 1, 2 teach one row each after 0, 1, 2 questions, while agent 3 goes on asking: one update of three rows."""
    tasks = {"echo": echo_task(training_rule=BatchRule(min_rows=3))}
    order = order_of_batches(tasks)

    def program(agent):
        ask("echo", agent.index if agent.index < 3 else 30, agent)
        if agent.index < 3:
            assert agent.helpers["echo"].comm.learn(update(agent, 1))["size"] == 3

    play("cooperative", program, 4, tasks, mode="async")
    assert [rows for name, rows in order if name == "echo learns"] == [3]


def test_an_update_is_at_most_twelve_calls_below_the_run():
    """From `Robot.run` to `Algorithm.learn`, both counted, and what keeps a user's traceback short."""
    calls = []

    class Deep(Echo):
        def learn(self, batch):
            frames = [frame for frame, _ in traceback.walk_stack(sys._getframe())]  # this one first
            calls[:] = [one.f_code.co_name for one in frames if one.f_globals["__name__"].startswith("parl_like.")]
            return super().learn(batch)

    play("cooperative", lambda agent: agent.helpers["echo"].comm.learn(update(agent, 1)), tasks={"echo": echo_task(Deep())})
    assert calls[0] == "update" and calls[-1] == "run" and len(calls) + 1 <= 12, calls


def test_a_sync_round_does_not_wait_for_those_who_never_learn():
    learning = iter([True, False])

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(5) if agent.index == 0 else count():
            if agent.signal is not None:
                return
            comm.predict(row(agent, i))
            if agent.index == 0:
                comm.learn(update(agent, 2))
        agent.robot.request_stop()

    task = echo_task(helper=lambda: Learner() if next(learning) else AgentHelper())
    play("cooperative", program, 2, {"echo": task})
    assert task.learns == 5


def test_calls_from_outside_while_agents_wait():
    """Between iterations an agent is held in mid-request; the main thread's own request is served with it, and both are
    answered."""
    seen = []

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(3):
            comm.learn(update(agent, 2))
            ticket = comm.predict(row(agent, i))
            seen.append(ticket.out["echo"][ticket.start].tolist())

    with robot_of(program, 2, {"echo": echo_task(helper=Learner)}) as robot:
        robot.train_iter()
        comm = robot.agents[0].helpers["echo"].comm
        ticket = comm.predict(row(robot.agents[0], 77))
        assert ticket.out["echo"][ticket.start].tolist() == [0, 77]
        assert comm.learn(update(robot.agents[0], 3))["size"] == 3
        robot.run()
    assert sorted(seen) == [[a, i] for a in range(2) for i in range(3)]


def test_an_agent_may_ask_another_robot_that_does_not_run():
    """As one that plans with a model of a robot of its own."""
    answers = []

    def program(agent):
        ask("echo", 2, other.agents[0])
        ask("echo", 2, agent)
        answers.append(agent.index)

    with robot_of(lambda agent: None) as other:
        play("cooperative", program, 2)
    assert answers == [0, 1]


@pytest.mark.parametrize("where", ["before", "during"])
def test_ctrl_c_in_the_middle_of_a_computation_loses_no_request(where):
    """The batch goes back to its queue; the stop answers it, and the next run works."""
    task = echo_task(helper=Learner)
    ended = []

    def interrupt(rows):
        setattr(task.algorithm, where, lambda rows: None)
        raise KeyboardInterrupt

    def program(agent):
        comm = agent.helpers["echo"].comm
        try:
            for i in range(6):
                if agent.signal is not None:
                    agent.obey()
                comm.predict(row(agent, i))
                comm.learn(update(agent, 2))
        finally:
            ended.append(agent.index)

    with robot_of(program, 4, {"echo": task}) as robot:
        setattr(task.algorithm, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            robot.run()
        assert sorted(ended) == [0, 1, 2, 3]
        ended.clear()
        robot.run()
        assert sorted(ended) == [0, 1, 2, 3]
        assert task.learns == 6


@pytest.mark.parametrize("where", ["before", "during"])
def test_an_interrupted_iteration_may_be_taken_up_again(where):
    """A user may catch Ctrl-C and go on: the batch that was put back is computed then."""
    task = echo_task(helper=Learner)

    def interrupt(rows):
        setattr(task.algorithm, where, lambda rows: None)
        raise KeyboardInterrupt

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(3):
            ticket = comm.predict(row(agent, i))
            assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]
            assert comm.learn(update(agent, 2))["size"] == 4

    with robot_of(program, 2, {"echo": task}) as robot:
        setattr(task.algorithm, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            robot.train_iter()
        for _ in range(3):
            robot.train_iter()
        assert task.learns == 3


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("what", ["predict", "learn"])
def test_ctrl_c_in_a_call_between_runs_loses_nobody(driver, what):
    """Two agents wait with requests in the queue that the robot's thread serves with its own; in the next run all go on.

    It strikes where the interpreter looks for signals: where a function begins, and after a built-in one.
    """
    files = {module.__file__ for module in (queues, cooperative, threads, acting_agents, child)}

    def program(agent):
        comm = agent.helpers["echo"].comm
        comm.predict(row(agent, 0))
        if agent.index:
            agent.robot.request_stop()
        ticket = comm.predict(row(agent, 1))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, 1]
        ended.append(agent.index)

    def interrupted(look):
        """Call with a strike at this look for signals, and return whether there was one so late."""
        left = [look]

        def strike(frame, event, _):
            if event in ("call", "c_return") and frame.f_code.co_filename in files:
                left[0] -= 1
                if not left[0]:
                    signal.raise_signal(signal.SIGINT)

        sys.setprofile(strike)
        try:
            if what == "predict":
                ghost.predict((np.array([9.0, 9.0]),))
            else:
                ghost.learn({"obs": np.zeros((2, 2))})
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return left[0] <= 0

    look, late = 1, True
    while late:
        ended, task = [], echo_task()
        with robot_of(program, 2, {"echo": task}, driver=driver) as robot:
            robot.run()
            ghost = Communicator(robot.wrappers["echo"], robot.agents[0], robot.pool.driver)
            late = interrupted(look)
            robot.run()
            assert sorted(ended) == [0, 1], look
        look += 1
    assert look > 20


def test_an_agent_whose_place_was_lost_is_still_ended():
    """As if Ctrl-C had struck between taking a fiber from the line and running it."""
    ended = []

    def program(agent):
        try:
            ask("echo", 100, agent)
        except Interrupted:
            ended.append(agent.index)
            raise

    with robot_of(program, 3) as robot, robot.pool.lifecycle.one_thread:
        robot.pool.lifecycle.start()
        driver = robot.pool.driver
        driver.run_ready()
        tickets = robot.wrappers["echo"].predictions.serve()
        assert len(tickets) == 3  # served, and never woken
        robot.pool.lifecycle.halt()
        assert sorted(ended) == [0, 1, 2] and not driver.agents
        robot.pool.lifecycle.start()
        driver.ready.clear()  # and none has ever run
        robot.pool.lifecycle.halt()
        assert not driver.agents


def test_a_failing_inline_call_raises_once_and_leaves_the_queue_in_order():
    task = echo_task(Echo())
    robot = play("inline", partial(ask, "echo", 2), 1, {"echo": task})
    agent = robot.agents[0]
    comm = agent.helpers["echo"].comm

    def interrupt(rows):
        task.algorithm.before = lambda rows: None
        raise KeyboardInterrupt

    task.algorithm.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        comm.predict(row(agent, 5))
    for i in (6, 7):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [0, i]
    assert not robot.wrappers["echo"].predictions.rows

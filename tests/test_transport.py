"""The transport contract: what every driver does with requests, whatever carries them. A new driver is added to `DRIVERS`."""

import random
import sys
import threading
from collections import Counter
from functools import partial
from itertools import count
from time import sleep

import numpy as np
import pytest
import torch
from transport_fakes import (
    BAD,
    ON_RAY,
    Drift,
    Echo,
    Learner,
    Programmed,
    Weights,
    connected,  # noqa: F401 - a fixture of this module, too
    echo_task,
    end_by_ctrl_c,
    framework_threads,
    one_ray,  # noqa: F401
    play,
    row,
    until,
    update,
)

from parl_like import Agent, AgentHelper, Hook, OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.model import Model
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed, Dropped, Stopped, TaskFailed
from parl_like.values.spec import SpecError

DRIVERS = ["inline", "cooperative", "threads", *(["processes"] if sys.platform == "linux" else [])]
"""'inline': calls from the main thread while no agent runs. The others are `Robot`'s drivers."""

RUNNING = [name for name in DRIVERS if name != "inline"]
LOCAL = [name for name in RUNNING if name != "processes"]
RAY = pytest.param("ray", marks=ON_RAY)
"""Drivers whose agents are in this process, for tests that look at the agents themselves, or whose agents write into the test's
lists. What those ask of worker processes is in tests/drivers/test_processes.py."""

each_driver = pytest.mark.parametrize("driver", [*DRIVERS, RAY])
each_running_driver = pytest.mark.parametrize("driver", [*RUNNING, RAY])
each_local_driver = pytest.mark.parametrize("driver", LOCAL)
each_driver_in_this_process = pytest.mark.parametrize("driver", ["inline", *LOCAL])


# ------------------------------------------------------------------------------------------------ who gets which answer (1, 4, 9)


def ask(n, agent):
    comm = agent.helpers["echo"].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


@each_driver
@pytest.mark.parametrize(("n_agents", "requests"), [
    (1, 300), (2, 300), (16, 100), *[pytest.param(n, 1000, marks=pytest.mark.slow) for n in (1, 2, 16)]])
def test_every_agent_gets_exactly_its_own_answers_in_order(driver, n_agents, requests):
    task = echo_task()
    play(driver, partial(ask, requests), n_agents, {"echo": task})
    assert task.algorithm.served() == Counter(dict.fromkeys(((a, i) for a in range(n_agents) for i in range(requests)), 1))


def ask_twice(agent):
    comm = agent.helpers["echo"].comm
    for i in range(0, 300, 3):
        first, second = comm.put_prediction(row(agent, i)), comm.put_prediction(row(agent, i + 1))
        third = comm.predict(row(agent, i + 2))  # a blocking one overtakes the waiting for the others
        assert third.out["echo"][third.start].tolist() == [agent.index, i + 2]
        assert comm.get(second)["echo"].tolist() == [[agent.index, i + 1]]
        assert comm.get(first)["echo"].tolist() == [[agent.index, i]]


@each_driver
def test_two_open_requests_of_one_agent_do_not_swap(driver):
    task = echo_task()
    play(driver, ask_twice, 4, {"echo": task})
    assert set(task.algorithm.served().values()) == {1}


def ask_again_for_the_same(agent):
    comm = agent.helpers["echo"].comm
    ticket = comm.put_prediction(row(agent, 7))
    assert comm.get(ticket)["echo"].tolist() == comm.get(ticket)["echo"].tolist() == [[agent.index, 7]]
    assert comm.is_served(ticket)
    bad = comm.put_prediction(row(agent, BAD))
    for _ in range(2):
        with pytest.raises(TaskFailed):
            comm.get(bad)


@each_driver
def test_a_reply_may_be_read_twice(driver):
    play(driver, ask_again_for_the_same, 1)  # alone, for a bad row fails whoever shares its batch


def teach_many_rows(alone, agent):
    comm = agent.helpers["echo"].comm
    n = [1, 5, 7][agent.index]
    for repeat in range(20):
        sent = update(agent, n, 10 * repeat)
        result = comm.learn(sent)
        np.testing.assert_array_equal(result["row"], sent["obs"])
        assert result["size"] == (n if alone else 13)
        obs = sent["obs"]
        got = comm.predict_rows((obs,), n)
        np.testing.assert_array_equal(np.concatenate([t.out["echo"][t.start : t.start + t.rows] for t in got]), obs)


@each_driver
def test_requests_of_1_5_and_7_rows_get_their_rows_and_share_the_statistics(driver):
    """Sync: all three wait, so 1 + 5 + 7 rows make one learning batch."""
    task = echo_task(helper=Learner)
    robot = play(driver, partial(teach_many_rows, driver == "inline"), 3, {"echo": task})
    learned = robot.wrappers["echo"].trainings.counters
    assert (learned.requests, learned.rows) == (60, 260)
    assert learned.batches == (60 if driver == "inline" else 20)


# -------------------------------------------------------------------------------------------------- when a batch closes (2, 3)


@each_driver
def test_a_batch_has_at_most_max_rows(driver):
    task = echo_task(predict_rule=BatchRule(max_rows=5))
    play(driver, partial(ask, 100), 16, {"echo": task})
    assert max(map(len, task.algorithm.batches)) == (1 if driver == "inline" else 5)
    assert sum(map(len, task.algorithm.batches)) == 1600


@pytest.mark.parametrize("driver", RUNNING)
def test_who_asks_while_a_batch_is_computed_shares_the_next_one(driver):
    """Of 16 agents nobody is left for a third batch. Where they are threads, the first one takes until all others have asked; a
    worker's agents ask together."""
    task = echo_task()
    waiting = []

    def until_all_have_asked(rows):
        if not waiting:
            waiting.append(16 - len(rows))
            until(lambda: robot.wrappers["echo"].predictions.rows == waiting[0])

    if driver == "threads":
        task.algorithm.before = until_all_have_asked
    with Robot(tasks={"echo": task}, agent=partial(Programmed, partial(ask, 20)), n_agents=16,
               driver=Processes(workers=2) if driver == "processes" else driver) as robot:
        robot.run()
    first, second, *_ = map(len, task.algorithm.batches)
    assert first + second >= 16, task.algorithm.batches[:2]


@each_running_driver
def test_a_batch_holds_everybody_who_could_come(driver):
    """Three agents that do nothing else always ask together, save in the first and last batches, where threads start and end."""
    task = echo_task(predict_rule=BatchRule(max_wait=60.0))
    play(driver, partial(ask, 50), 3, {"echo": task})
    assert [len(batch) for batch in task.algorithm.batches[5:-5]] == [3] * (len(task.algorithm.batches) - 10)


def ask_and_learn(agent):
    comm = agent.helpers["echo"].comm
    for i in range(10 * (1 + agent.index)):
        comm.predict(row(agent, i))
        assert comm.learn(update(agent, 2))["size"] >= 2


@each_driver
@pytest.mark.parametrize("rule", [dict(min_rows=1000), dict(min_rows=1000, max_wait=0.002), dict(min_rows=1000, max_rows=2000)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_min_rows_that_can_never_come_hang_nobody(driver, rule, mode):
    """Agents with 10, 20 and 30 rounds: at the end the last one is alone."""
    task = echo_task(predict_rule=BatchRule(**rule), training_rule=BatchRule(**rule))
    play(driver, ask_and_learn, 3, {"echo": task}, mode=mode)
    assert task.rows_learned == 2 * 60


@each_driver
def test_min_rows_close_a_batch_before_everybody_came(driver):
    task = echo_task(predict_rule=BatchRule(min_rows=2, max_rows=3))
    play(driver, partial(ask, 40), 7, {"echo": task})
    assert max(map(len, task.algorithm.batches)) <= 3
    assert sum(map(len, task.algorithm.batches)) == 280


def ask_many_rows(agent):
    comm = agent.helpers["echo"].comm
    obs = np.stack([np.full(10, float(agent.index)), np.arange(10.0)], 1)
    for _ in range(20):
        tickets = comm.predict_rows((obs,), 10)
        assert [t.rows for t in tickets] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate([t.out["echo"][t.start : t.start + t.rows] for t in tickets]), obs)
        assert all(comm.is_served(t) for t in tickets)
    with pytest.raises(ValueError, match="agent ., task 'echo': a prediction of 0 rows"):
        comm.predict_rows((obs[:0],), 0)


@each_driver
def test_an_oversize_prediction_is_split_and_comes_back_whole(driver):
    task = echo_task(predict_rule=BatchRule(max_rows=4))
    play(driver, ask_many_rows, 3, {"echo": task})
    assert max(map(len, task.algorithm.batches)) == 4


def teach_too_many_rows(agent):
    comm = agent.helpers["echo"].comm
    for _ in range(10):
        sent = update(agent, 9 if agent.index == 0 else 2)
        np.testing.assert_array_equal(comm.learn(sent)["row"], sent["obs"])


@each_driver
def test_an_oversize_update_is_a_batch_of_its_own(driver):
    """max_rows 4: the 9 rows of agent 0 stay together and alone; the others' requests fit into one batch unless they come around
    it."""
    task = echo_task(helper=Learner, training_rule=BatchRule(max_rows=4))
    play(driver, teach_too_many_rows, 3, {"echo": task})
    sizes = Counter(len(batch) for batch in task.algorithm.updates_seen)
    assert sizes[9] == 10 and sizes[4] * 4 + sizes[2] * 2 == 40
    if driver in ("inline", "cooperative"):
        assert sizes[4] == (10 if driver == "cooperative" else 0)


# ---------------------------------------------------------------------------------------------------------------- failures (5)


def ask_with_one_bad(n, agent):
    """Each agent asks once with everybody else, agent 0 for the impossible; then all ask again."""
    comm = agent.helpers["echo"].comm
    try:
        comm.predict(row(agent, BAD if agent.index == 0 else 1))
        agent.failed = None
    except TaskFailed as error:
        agent.failed = error
    ask(n, agent)


@each_driver_in_this_process
@pytest.mark.parametrize("max_rows", [None, 4])
def test_a_failing_prediction_answers_exactly_its_members_and_the_next_batch_works(driver, max_rows):
    task = echo_task(predict_rule=BatchRule(max_rows=max_rows))
    robot = play(driver, partial(ask_with_one_bad, 20), 8, {"echo": task})
    bad = [batch for batch in task.algorithm.batches if (batch[:, 1] == BAD).any()]
    assert len(bad) == 1
    members = sorted(int(a) for a in bad[0][:, 0])
    assert [agent.index for agent in robot.agents if agent.failed is not None] == members
    if driver == "cooperative":
        assert len(members) == (max_rows or 8)
    text = str(robot.agents[0].failed)
    for part in ("task 'echo': predict failed", f"{len(members)} request", "agent 0", "ArithmeticError: the row is bad",
                 "transport_fakes.py", "in predict"):
        assert part in text, part
    assert isinstance(robot.agents[0].failed.__cause__, ArithmeticError)
    counters = robot.wrappers["echo"].predictions.counters
    assert (counters.errors, counters.requests) == (1, 168)


def teach_with_one_bad(agent):
    comm = agent.helpers["echo"].comm
    with pytest.raises(TaskFailed, match="ArithmeticError: the row is bad") if agent.index == 0 or agent.together else no_error():
        comm.learn({"obs": np.full((2, 2), BAD)} if agent.index == 0 else update(agent, 3))
    for _ in range(3):
        assert comm.learn(update(agent, 2))["size"] >= 2


class no_error:  # noqa: N801 - reads like pytest.raises
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


@each_driver
def test_a_failing_update_answers_exactly_its_members_and_the_next_batch_works(driver):
    task = echo_task(helper=Learner, on_error="fail_batch")

    def program(agent):
        agent.together = driver != "inline"
        teach_with_one_bad(agent)

    robot = play(driver, program, 3, {"echo": task})
    assert task.learns == (9 if driver != "inline" else 11) - (6 if driver != "inline" else 0)
    assert robot.wrappers["echo"].trainings.counters.errors == 1
    assert [part.tolist() for part in task.algorithm.model.parts] == [[task.learns]]  # the failed one changed nothing


def unfit(where, agent):
    comm = agent.helpers["echo"].comm
    with pytest.raises(TaskFailed, match="predict failed" if where == "unpack prediction" else "learn failed") as caught:
        if where == "unpack prediction":
            comm.predict(row(agent, 1))
        else:
            comm.learn(update(agent, 3))
    assert "Traceback" in str(caught.value)
    agent.caught = str(caught.value)


@each_driver_in_this_process
@pytest.mark.parametrize(("where", "message"), [
    ("unpack prediction", r"field 'echo': expected \('N', 2\) float64, got \({}, 2\) float64"),
    ("unpack update", "learn returned 'row' with"),
])
def test_failures_in_pack_and_unpack_reach_every_member(driver, where, message):
    task = echo_task(helper=Learner, on_error="fail_batch")
    task.algorithm.short = where.startswith("unpack")
    robot = play(driver, partial(unfit, where), 2, {"echo": task})
    for agent in robot.agents:
        assert message.split("got")[0].replace("\\", "") in agent.caught, agent.caught


def ask_something_unfit(agent):
    comm = agent.helpers["echo"].comm
    for values, text in [((np.zeros(3),), r"\(3,\) float64"), ((np.array([0.0, np.nan]),), "NaN"), ((None,), "None")]:
        with pytest.raises(SpecError, match=f"agent {agent.index}.*task 'echo', field 'obs'.*{text}"):
            comm.predict(values)
        with pytest.raises(SpecError, match=f"agent {agent.index}"):
            comm.put_prediction(values)
    for rows in ({}, {"obs": np.zeros((0, 2))}, {"obs": np.zeros((3, 2)), "rew": np.zeros(4)}):
        with pytest.raises(ValueError, match=f"agent {agent.index}, task 'echo': training fields with rows"):
            comm.put_training(rows)
    for shape in ((3, 4), (3,), (3, 2, 3)):
        with pytest.raises(SpecError, match=f"agent {agent.index}, task 'echo', training field 'obs': expected rows of .2,. "
                                            "float64, as in the model, got"):
            comm.put_training({"obs": np.zeros(shape)})
    if agent.robot.driver_name == "cooperative":  # nobody else runs meanwhile: an empty batch would stay behind
        assert all(batch.rows for batch in comm.wrapper.predictions.batches)
        assert not comm.wrapper.trainings.batches
    ask(20, agent)


@each_driver
def test_what_does_not_fit_is_refused_to_its_sender_alone(driver):
    task = echo_task()
    robot = play(driver, ask_something_unfit, 4, {"echo": task})
    assert robot.wrappers["echo"].predictions.counters.errors == 0
    assert task.algorithm.served() == Counter(dict.fromkeys(((a, i) for a in range(4) for i in range(20)), 1))


def learn_something_bad(agent):
    comm = agent.helpers["echo"].comm
    for i in count():
        comm.predict(row(agent, i))
        if i == 3:
            comm.put_training({"obs": np.full((2, 2), BAD)} if agent.index == 1 else update(agent, 2))
        sleep(0)


@each_running_driver
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_on_error_stop_raises_from_run_with_the_original_traceback(driver, mode):
    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in count():
            comm.predict(row(agent, i))
            if i == 3:
                comm.learn({"obs": np.full((2, 2), BAD)} if agent.index == 1 else update(agent, 2))

    with pytest.raises(TaskFailed) as caught:
        play(driver, program, 3, mode=mode)
    for part in ("task 'echo': learn failed", "Traceback", "transport_fakes.py", "in learn", "ArithmeticError: the row is bad"):
        assert part in str(caught.value), part
    assert not framework_threads()


# ---------------------------------------------------------------------------------------------------------------- stopping (6)


def ask_for_ever(seed, agent):
    """Counts what it asked and what it got; sometimes slow, sometimes teaching, sometimes with a second request open."""
    rng = random.Random(100 * seed + agent.index)
    comm = agent.helpers["echo"].comm
    for i in count():
        if agent.signal is not None and agent.robot.driver_name == "cooperative":
            agent.obey()  # as helpers do; threads must do without
        agent.asked += 1
        try:
            kind = rng.random()
            if kind < 0.1:
                comm.learn(update(agent, 2))
            elif kind < 0.2:
                ticket = comm.put_prediction(row(agent, i))
                comm.predict(row(agent, i))
                comm.get(ticket)
            else:
                comm.predict(row(agent, i))
            if kind > 0.95:
                sleep(0.001)
        finally:
            agent.answered += 1


def prepare(agent):
    agent.asked = agent.answered = 0


@each_local_driver
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_stop_at_any_moment_ends_everybody_and_answers_everything(driver, mode):
    """200 runs of one robot, 100 here in each mode: stopped after 0 to 6 ms, while it predicts, learns, waits or starts."""
    rng = random.Random(1)
    task = echo_task(Echo(seconds=0.0003), training_rule=BatchRule(min_rows=3), predict_rule=BatchRule(max_rows=3))
    seeds = iter(range(10**6))
    robot = Robot(tasks={"echo": task}, agent=lambda: Programmed(lambda agent: ask_for_ever(next(seeds), agent)), n_agents=4,
                  driver=driver, mode=mode)
    for agent in robot.agents:
        prepare(agent)
    for _ in range(100):
        timer = threading.Timer(rng.random() * 0.006, robot.request_stop)
        timer.start()
        robot.run()
        timer.join()
        robot.request_stop()
        robot.pool.lifecycle.halt()  # a second stop has nothing to do
        assert [agent.asked for agent in robot.agents] == [agent.answered for agent in robot.agents]
        queues = (robot.wrappers["echo"].predictions, robot.wrappers["echo"].trainings)
        assert not any(queue.rows or queue.batches for queue in queues)
        assert not framework_threads()
    assert sum(agent.asked for agent in robot.agents)
    robot.close()
    robot.close()


@each_local_driver
def test_requests_after_a_stop_are_refused_until_the_next_start(driver):
    seen = []

    def program(agent):
        comm = agent.helpers["echo"].comm
        try:
            for i in count():
                if agent.signal is not None and driver == "cooperative":
                    return
                comm.predict(row(agent, i))
                agent.robot.request_stop()
        except Stopped as error:
            seen.append(str(error))
            raise

    robot = play(driver, program, 2)
    if driver == "threads":  # the cooperative driver ends its agents with an interruption first
        assert sorted(seen) == [f"agent {i}, task 'echo': the robot stopped" for i in range(2)]
    ticket = robot.agents[0].helpers["echo"].comm.predict(row(robot.agents[0], 5))
    assert ticket.out["echo"].tolist() == [[0, 5]]


@each_local_driver
def test_ctrl_c_ends_the_run_cleanly(driver):
    """30 interruptions of the main thread at random moments, Python's own KeyboardInterrupt."""
    rng = random.Random(2)
    task = echo_task(Echo(seconds=0.0003))
    robot = Robot(tasks={"echo": task}, agent=lambda: Programmed(lambda agent: ask_for_ever(0, agent)), n_agents=3, driver=driver)
    for agent in robot.agents:
        prepare(agent)
    for _ in range(30):
        end_by_ctrl_c(robot.run, 0.002 + rng.random() * 0.006)
        robot.pool.lifecycle.halt()  # where the interruption struck before the run, or in its end
        assert [agent.asked for agent in robot.agents] == [agent.answered for agent in robot.agents]
        assert not framework_threads()
    robot.close()
    play(driver, partial(ask, 3), 3, {"echo": task})  # the task still works


@each_running_driver
def test_200_starts_and_stops_leave_nothing_behind(driver):
    import os

    def open_files():
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    robot = Robot(tasks={"echo": echo_task()}, agent=partial(Programmed, partial(ask, 3)), n_agents=3, driver=driver)
    robot.run()
    threads, files = set(threading.enumerate()), open_files()  # of which some of another test's may end meanwhile
    for _ in range(200):
        robot.run()
    assert set(threading.enumerate()) <= threads and open_files() <= files
    assert not framework_threads()
    assert robot.wrappers["echo"].predictions.counters.requests == 201 * 9
    robot.close()


# ------------------------------------------------------------------------------------------------------- agents that end (7, 8)


def end_early(moment, agent):
    """Agent 0 ends with a request waiting, while or after it is served; the others go on."""
    comm = agent.helpers["echo"].comm
    if agent.index:
        return ask(50, agent)
    comm.predict(row(agent, 0))
    if moment == "queued":
        comm.put_prediction(row(agent, 1))
    elif moment == "queued to learn":
        comm.put_training(update(agent, 4))
    elif moment == "served, not read":
        ticket = comm.put_prediction(row(agent, 1))
        for i in range(2, 5):
            comm.predict(row(agent, i))
        assert comm.is_served(ticket)
    return None


@each_driver
@pytest.mark.parametrize("moment", ["queued", "queued to learn", "served, not read", "after the reply"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_agent_that_ends_disturbs_nobody(driver, moment, mode):
    task = echo_task()
    robot = play(driver, partial(end_early, moment), 4, {"echo": task}, mode=mode)
    served = task.algorithm.served()
    assert all(served[a, i] == 1 for a in (1, 2, 3) for i in range(50))
    if driver != "inline":  # inline nobody comes to serve what nobody waits for
        assert not robot.wrappers["echo"].predictions.rows and not robot.wrappers["echo"].trainings.rows
        assert len(task.algorithm.updates_seen) == (moment == "queued to learn")


def die(moment, agent):
    end_early(moment, agent)
    if agent.index == 0:
        raise OSError("power failure")
    ask_for_ever(0, agent)


@each_local_driver
@pytest.mark.parametrize("moment", ["queued", "queued to learn", "served, not read", "after the reply"])
def test_run_reports_the_agent_that_died_and_answers_the_others(driver, moment):
    agents = []

    def program(agent):
        prepare(agent)
        agents.append(agent)
        die(moment, agent)

    with pytest.raises(AgentFailed, match="agent 0: run_one_episode raised OSError: power failure"):
        play(driver, program, 4)
    assert all(agent.asked == agent.answered for agent in agents)
    assert not framework_threads()


def two_rates(agent):
    """E6: the goal task every 3 (even agents) or 5 steps, unequal lengths; agent 3 learns nothing and goes on longest."""
    low, high = agent.helpers["RL"].comm, agent.helpers["goal"].comm
    every = 3 if agent.index % 2 == 0 else 5
    for i in range(1, [31, 53, 77, 301][agent.index]):
        if i % every == 0:
            ticket = high.predict(row(agent, i))
            assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]
            if agent.index != 3:
                high.learn(update(agent, 2))
        ticket = low.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]
        if agent.index != 3 and i % (4 + agent.index) == 0:
            low.learn(update(agent, 3))


@each_driver
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("rule", [None, BatchRule(min_rows=6)])
def test_two_tasks_with_different_rates_and_unequal_agents_do_not_deadlock(driver, mode, rule):
    learning = iter([True, True, True, False] * 2)

    def helper():
        return Learner() if next(learning) else AgentHelper()

    tasks = {name: echo_task(helper=helper, training_rule=rule, predict_rule=rule) for name in ("RL", "goal")}
    play(driver, two_rates, 4, tasks, mode=mode)
    # Agents 0, 1, 2 make 30, 52, 76 steps: they learn low every 4, 5, 6 steps, high every 3, 5, 3.
    assert tasks["RL"].rows_learned == 3 * (30 // 4 + 52 // 5 + 76 // 6)
    assert tasks["goal"].rows_learned == 2 * (30 // 3 + 52 // 5 + 76 // 3)


@each_local_driver
def test_a_round_ends_when_the_last_learner_ends(driver):
    """Agent 0 learns and ends; agent 1 only asks, for ever. An iteration must still come back to the robot."""
    learning = iter([True, False])

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(5) if agent.index == 0 else count():
            comm.predict(row(agent, i))

    task = echo_task(helper=lambda: Learner() if next(learning) else AgentHelper())
    with Robot(tasks={"echo": task}, agent=partial(Programmed, program), n_agents=2, driver=driver) as robot:
        for _ in range(3):
            assert robot.pool.lifecycle.advance()
        assert len(robot.pool.driver.agents) == 1


# ------------------------------------------------------------------------------------------------------------- parameters (10)


def teach_without_waiting(agent):
    comm = agent.helpers["echo"].comm
    for _ in range(60):
        comm.get(comm.put_training(update(agent, 2)))


def watch_the_parameters(agent):
    if agent.index == 0:
        return teach_without_waiting(agent)
    comm = agent.helpers["echo"].comm
    last = 0
    for i in count():
        ticket = comm.predict(row(agent, i))
        reply = {name: value[ticket.start].copy() for name, value in ticket.out.items() if name.startswith("w")}
        values = {float(v) for part in reply.values() for v in part}
        assert values == {ticket.version}, f"parameters {sorted(values)} in a reply of version {ticket.version}"
        assert ticket.version >= last
        last = ticket.version
        comm.predict(row(agent, i))
        if last == 180 or (agent.robot.driver_name == "cooperative" and i == 500):
            return None


@each_running_driver
def test_all_parameters_of_a_prediction_come_from_one_version(driver):
    """Every optimiser step adds 1 to each of 8 parameters, which are 0 at first: so all of them equal the version, always."""
    task = echo_task(Echo(Weights(8, 2000), steps=3))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        play(driver, watch_the_parameters, 3, {"echo": task}, mode="async")
    finally:
        sys.setswitchinterval(interval)
    assert task.version == 180


@each_driver
def test_a_reply_does_not_change_when_the_parameters_or_the_next_batch_do(driver):
    """`Echo` answers with views of its parameters and of its inputs; the reply is a copy."""
    def program(agent):
        comm = agent.helpers["echo"].comm
        ticket = comm.put_prediction(row(agent, 5))
        reply = comm.get(ticket)
        assert reply["w0"].tolist() == [[0.0]]
        teaching = comm.put_training(update(agent, 2))
        result = comm.get(teaching)
        assert (ticket.version, teaching.version) == (0, 1)
        comm.predict(row(agent, 6))
        assert reply["w0"].tolist() == [[0.0]] and reply["echo"].tolist() == [[agent.index, 5]]
        assert all(not isinstance(value, torch.Tensor) for value in (*reply.values(), *result.values()))

    play(driver, program, 1)


# --------------------------------------------------------------------------------------------------------------- registration


def test_an_agent_id_is_registered_once_and_may_come_back():
    robot = play("inline", partial(ask, 1), 2)
    wrapper, agent = robot.wrappers["echo"], robot.agents[0]
    first = agent.helpers["echo"].comm
    with pytest.raises(ValueError, match=r"agent 0 already has a communicator of task 'echo'; close\(\) it first"):
        wrapper.create_communicator(agent, robot.pool.driver)
    first.close()
    second = wrapper.create_communicator(agent, robot.pool.driver)
    first.close()  # again: must not take its successor's place
    with pytest.raises(ValueError, match="already has"):
        wrapper.create_communicator(agent, robot.pool.driver)
    assert second.get(second.put_prediction(row(agent, 3)))["echo"].tolist() == [[0, 3]]
    assert sorted(wrapper.communicators) == ["agent 0", "agent 1"]


def test_agents_may_register_at_the_same_time():
    robot = play("inline", partial(ask, 1), 1)
    wrapper = robot.wrappers["echo"]
    made = []

    def register():
        for i in range(200):
            try:
                made.append(wrapper.create_communicator(f"guest {i}", robot.pool.driver))
            except ValueError:
                sleep(0)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 200 and len(wrapper.communicators) == 201


# ------------------------------------------------------------------------------------------------------------------- counters


@each_driver
def test_counters_say_what_was_done(driver):
    task = echo_task(Echo(seconds=0.002), helper=Learner, on_error="fail_batch")

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(10):
            comm.predict(row(agent, i))
        comm.predict_rows((np.zeros((5, 2)),), 5)
        comm.learn(update(agent, 3))
        with pytest.raises(TaskFailed):
            comm.learn({"obs": np.full((3, 2), BAD)})

    robot = play(driver, program, 4, {"echo": task})
    summary = robot.wrappers["echo"].summary()
    predicted = len(task.algorithm.batches)
    assert {key: summary[f"predict/{key}"] for key in ("requests", "rows", "batches", "errors", "queue_depth")} == dict(
        requests=44, rows=60, batches=predicted, errors=0, queue_depth=0)
    assert summary["predict/mean_batch"] == 60 / predicted
    assert {key: summary[f"learn/{key}"] for key in ("requests", "rows", "queue_depth")} == dict(
        requests=8, rows=24, queue_depth=0
    )
    assert summary["learn/errors"] == (4 if driver == "inline" else 1)
    assert 0.002 <= summary["predict/compute_p50_s"] <= summary["predict/compute_p99_s"] < 60
    assert 0 <= summary["predict/wait_p50_s"] <= summary["predict/wait_p99_s"] < 60


def test_queue_depth_counts_waiting_rows():
    robot = play("inline", partial(ask, 1), 1)
    comm = robot.agents[0].helpers["echo"].comm
    tickets = [comm.put_prediction(row(robot.agents[0], i)) for i in range(3)] + [comm.put_training(update(robot.agents[0], 4))]
    summary = robot.wrappers["echo"].summary()
    assert (summary["predict/queue_depth"], summary["learn/queue_depth"]) == (3, 4)
    for ticket in tickets:
        comm.get(ticket)
    assert robot.wrappers["echo"].summary()["predict/queue_depth"] == 0


@each_driver
def test_a_reply_that_nobody_waits_for_any_more_is_dropped_and_counted(driver):
    def program(agent):
        comm = agent.helpers["echo"].comm
        given_up = comm.put_prediction(row(agent, 0))
        comm.abandon(given_up)
        comm.abandon(given_up)
        ticket = comm.predict(row(agent, 1))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, 1]
        comm.abandon(ticket)  # served already, so not late

    robot = play(driver, program, 3)
    assert robot.wrappers["echo"].summary()["predict/late"] == 3
    assert robot.wrappers["echo"].predictions.abandoned == 0


@each_driver_in_this_process
def test_a_full_training_queue_blocks_its_senders(driver):
    depths = []

    def program(agent):
        comm = agent.helpers["echo"].comm
        tickets = []
        for i in range(10):
            tickets.append(comm.put_training(update(agent, 2, i)))
            depths.append(agent.robot.wrappers["echo"].trainings.rows)
        for i, ticket in enumerate(tickets):
            assert comm.get(ticket)["row"].tolist() == [[agent.index, i], [agent.index, i + 1]]

    task = echo_task(training_rule=BatchRule(max_queued=6))
    robot = play(driver, program, 3, {"echo": task}, mode="async")
    assert max(depths) <= 6 + 3 * 2  # every agent may find it just not full
    assert (robot.wrappers["echo"].summary()["learn/rows"], robot.wrappers["echo"].summary()["learn/dropped"]) == (60, 0)


def test_a_full_training_queue_drops_its_oldest_requests_where_told_to():
    task = echo_task(training_rule=BatchRule(max_queued=5, max_rows=4, when_full="drop_oldest"))
    robot = play("inline", partial(ask, 1), 1, {"echo": task}, mode="async")
    agent = robot.agents[0]
    comm = agent.helpers["echo"].comm
    tickets = [comm.put_training(update(agent, 2, i)) for i in range(4)]  # batches (0, 1), (2, 3): 0 and 1 must go
    assert robot.wrappers["echo"].trainings.rows == 4
    for ticket in tickets[:2]:
        with pytest.raises(Dropped, match=r"agent 0, task 'echo': dropped 2 rows to learn from; the queue holds 5"):
            comm.get(ticket)
    assert [comm.get(ticket)["row"][0].tolist() for ticket in tickets[2:]] == [[0, 2], [0, 3]]
    large = comm.put_training(update(agent, 9))  # alone above the bound: taken all the same
    assert len(comm.get(large)["row"]) == 9
    assert robot.wrappers["echo"].summary()["learn/dropped"] == 4


@each_local_driver
def test_whoever_waits_for_a_dropped_update_hears_of_it(driver):
    heard = []

    def program(agent):
        comm = agent.helpers["echo"].comm
        if agent.index == 0:
            try:
                comm.learn(update(agent, 2))
            except Dropped:
                heard.append(0)
        else:
            until(lambda: agent.robot.wrappers["echo"].trainings.rows)  # acting all the while, so that nothing closes the batch
            ticket = comm.put_training(update(agent, 2, 5.0))
            assert comm.get(ticket)["row"].tolist() == [[1, 5], [1, 6]]

    task = echo_task(training_rule=BatchRule(min_rows=3, max_queued=3, when_full="drop_oldest"), helper=Learner)
    play(driver, program, 2, {"echo": task}, mode="async")
    assert heard == [0]


# -------------------------------------------------------------------------------------------------------------------- explorers


class Elementwise(Algorithm):
    """Logits are the observation times 2: exact in every row, whatever the batch."""

    def __init__(self):
        class Linear(Model):
            def __init__(self):
                super().__init__(Drift.observation_space, Drift.action_space)
                self.w = torch.nn.Parameter(torch.ones(1))

        super().__init__(Linear())

    def predict(self, inputs):
        return {"logits": inputs.obs * 2.0}

    def explorer(self):
        return Categorical()

    def learn(self, batch):
        return {"loss": self.model.w.sum()}


class Actions(Hook):
    def __init__(self):
        self.taken = {}

    def pre_act(self, agent, act):
        self.taken.setdefault(agent.index, []).append(act)


class Limited(Agent):
    """A fixed number of steps."""

    def run(self):
        for _ in range(4):
            self.run_one_episode()


@each_local_driver
def test_an_agents_actions_do_not_depend_on_who_shares_its_batches(driver):
    """Alone, with 15 others, and in batches of at most 3: agent 0 samples the same 200 actions."""
    def actions(n_agents, **rule):
        hook = Actions()
        with Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), predict_rule=BatchRule(**rule))}, agent=Limited,
                   n_agents=n_agents,
                   driver=driver, seed=4) as robot:
            robot.run(hooks=hook)
        return hook.taken

    alone, crowd, pieces = actions(1), actions(16), actions(16, max_rows=3)
    assert len(alone[0]) == 200 and len(set(alone[0])) == 3
    assert alone[0] == crowd[0]
    assert crowd == pieces
    assert len({tuple(taken) for taken in crowd.values()}) == 16  # and no two agents draw the same


def test_same_seed_same_trace_under_cooperative():
    def trace(seed):
        tasks = {name: ComputationTask(Elementwise(), lambda: OnPolicyHelper(unroll=7)) for name in ("RL", "goal")}
        with Robot(Drift, tasks=tasks, n_agents=5, seed=seed, trace=True) as robot:
            robot.run(StopAfterSteps(1000))
            return robot.trace_hash(), robot.wrappers["RL"].predictions.counters.batches

    assert trace(0) == trace(0)
    assert trace(0)[0] != trace(1)[0]


# ------------------------------------------------------------------------------------------------------------ sync iterations


@each_local_driver
@pytest.mark.parametrize("n_agents", [1, 5])
def test_a4_every_iteration_unrolls_with_unchanged_parameters_and_then_trains_once(driver, n_agents):
    """A4: environment steps = rows learned from, after each iteration; the parameters change between unrolls only."""
    task = ComputationTask(Elementwise(), lambda: OnPolicyHelper(unroll=6))
    versions = []

    class Versions(Hook):
        def pre_act(self, agent, act):
            versions.append((len(robot_iterations), task.version))

    robot_iterations = []
    with Robot(Drift, tasks={"RL": task}, n_agents=n_agents, driver=driver) as robot:
        for agent in robot.agents:
            agent.env.observe([Versions()])
        for i in range(1, 21):
            robot.train_iter()
            assert robot.env_steps == task.rows_learned == 6 * n_agents * i
            assert (robot.iterations, task.learns, task.version) == (i, i, i)
            assert sum(agent.steps for agent in robot.agents) == robot.env_steps
            robot_iterations.append(i)
    assert all(iteration == version for iteration, version in versions[: 6 * n_agents * 20])


@each_running_driver
def test_off_policy_requests_of_unequal_agents_all_train(driver):
    task = ComputationTask(Elementwise(), lambda: OffPolicyHelper(size=500, batch_size=8, learn_every=3))
    for mode in ("sync", "async"):
        with Robot(Drift, tasks={"RL": task}, n_agents=4, driver=driver, mode=mode) as robot:
            robot.run(StopAfterSteps(600))
            assert task.learns > 20
            assert robot.env_steps >= 600
        assert not framework_threads()


@pytest.mark.parametrize("learn_every", [1, 3])
def test_an_update_waits_for_an_agent_whose_own_is_being_made(learn_every):
    """Under threads one looks at another in the middle of a step, which has been counted, and of which no row is left to learn
    from."""
    waits = []

    class Slow(OffPolicyHelper):
        def ready(self):
            return True  # without a warmup, in the middle of which an agent that is ahead would pass by its first update

        def _learn(self):
            driver, queue = self.agent.agent_pool.driver, self.agent.robot.wrappers["RL"].trainings
            if self.agent.index == 1:
                until(lambda: queue.rows or self.task.learns, what="the request of the other agent")
                with driver.lock:
                    waits.append(driver.rounds.update_waits())
            return super()._learn()

    task = ComputationTask(Elementwise(), lambda: Slow(size=500, batch_size=1, learn_every=learn_every))
    with Robot(Drift, tasks={"RL": task}, n_agents=2, driver="threads") as robot:
        for _ in range(3):
            before = task.learns
            robot.train_iter()
            assert task.learns == before + 2
    assert waits and all(waits)


@each_running_driver
def test_a_run_goes_on_after_a_collection_and_a_checkpoint(driver, tmp_path):
    """The collection leaves the agents parked in mid-episode, as the run does; the checkpoint ends their episodes."""
    task = ComputationTask(Elementwise(), lambda: OffPolicyHelper(size=900, batch_size=4, learn_every=5))
    with Robot(Drift, tasks={"RL": task}, n_agents=3, driver=driver) as robot:
        for i in range(3):
            before = robot.env_steps
            assert robot.collect(n_step=21).n_steps == 21
            robot.save(tmp_path / f"{i}")
            learned = task.learns
            robot.train_iter()
            assert task.learns == learned + 3
            robot.save(tmp_path / f"{i}b")
            robot.run(StopAfterSteps(40))
            assert robot.env_steps >= before + 21 + 40
    assert not framework_threads()


@each_local_driver
@pytest.mark.parametrize("call", ["checkpoint_boundary", "close", "run"])
def test_halting_from_inside_an_agent_is_refused_instead_of_waiting_for_oneself(driver, call):
    def program(agent):
        if agent.index == 0:
            with pytest.raises(RuntimeError, match="an agent cannot run or halt all agents"):
                getattr(agent.robot, call)()
        ask(5, agent)
        finished.append(agent.index)

    finished = []
    play(driver, program, 2)
    assert sorted(finished) == [0, 1]


@each_running_driver
def test_counts_of_steps_are_not_lost_between_agents(driver):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Robot(Drift, tasks={"RL": ComputationTask(Elementwise())}, agent=Limited, n_agents=8, driver=driver) as robot:
            robot.run(StopWhen(lambda robot: False))
            assert [agent.steps for agent in robot.agents] == [200] * 8
            assert (robot.env_steps, robot.episodes) == (1600, 32)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_training_batch_that_its_own_rule_closes_ends_the_iteration(driver):
    """With `min_rows` that every round reaches, training never waits for everybody; iterations must come all the same."""
    task = ComputationTask(Elementwise(), lambda: OnPolicyHelper(unroll=6), training_rule=BatchRule(min_rows=12))
    with Robot(Drift, tasks={"RL": task}, n_agents=2, driver=driver) as robot:
        done = sum(1 for _ in robot.iterate(120))
        assert robot.env_steps >= 120 and done >= 5


@each_local_driver
@pytest.mark.parametrize("call", ["train_iter", "collect", "run"])
def test_running_from_inside_a_hook_is_refused_and_the_run_goes_on(driver, call):
    refused = []

    class Again(Hook):
        def post_act(self, agent):
            if not refused:
                with pytest.raises(RuntimeError, match="an agent cannot run or halt all agents"):
                    getattr(agent.robot, call)(**{"collect": {"n_step": 4}, "run": {"stop": StopAfterSteps(5)}}.get(call, {}))
                refused.append(agent.index)

    task = ComputationTask(Elementwise(), lambda: OnPolicyHelper(unroll=5))
    with Robot(Drift, tasks={"RL": task}, n_agents=2, driver=driver) as robot:
        robot.run(StopAfterSteps(40), Again())
        assert len(refused) == 1 and robot.env_steps >= 40


def learn_unlike_the_others(agent):
    comm = agent.helpers["echo"].comm
    if agent.index == 0:
        assert comm.learn({"obs": np.zeros((3, 2)), "weight": np.zeros((3, 5))})["size"] == 3
        return
    for extra in (np.zeros((3, 4)), np.zeros((3, 5), np.float32)):
        with pytest.raises(SpecError, match="agent 1, task 'echo', training field 'weight': expected rows of .5,. float64, as "
                                            "in the request before"):
            comm.put_training({"obs": np.zeros((3, 2)), "weight": extra})


def test_an_update_unlike_the_open_ones_is_refused_to_its_sender_alone():
    play("cooperative", learn_unlike_the_others, 2, {"echo": echo_task(helper=Learner)})

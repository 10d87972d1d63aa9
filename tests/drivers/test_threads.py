"""The threads driver alone: who serves, when the clock closes a batch, stops in every phase, agents and servers that break."""

import contextlib
import ctypes
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import count
from pathlib import Path
from time import sleep

import gymnasium as gym
import numpy as np
import pytest
import torch
from transport_fakes import BAD, Echo, Learner, Programmed, echo_task, end_by_ctrl_c, framework_threads, play, row, until, update

from parl_like import AgentHelper, OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.drivers import threads
from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.process import child
from parl_like.run.lifecycle import Phase
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.tickets import Ticket
from parl_like.tasks.wrapper import Communicator
from parl_like.values.errors import AgentFailed, Stopped, TaskFailed

SAFETY_S = 60.0
"""Only bounds how long a broken test takes."""

OURS = {threads.__file__, child.__file__, threading.__file__, contextlib.__file__, sys.modules[Robot.__module__].__file__}


def strike():
    """Ctrl-C, delivered to the main thread as a terminal's is."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def robot_of(program, n_agents=1, task=None, **options):
    return Robot(tasks={"echo": task or echo_task()}, agent=partial(Programmed, program), n_agents=n_agents, driver="threads",
                 **options)


def ask(n, agent):
    comm = agent.helpers["echo"].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    until(lambda: not framework_threads(), SAFETY_S, f"the end of {framework_threads()}")


# ------------------------------------------------------------------------------------------------------------------ who serves


def test_the_agent_that_completes_a_batch_serves_it():
    """One agent needs no second thread; of three, none waits for a prediction thread to be woken, unless by the clock."""
    for n_agents in (1, 3):
        names = []
        task = echo_task(predict_rule=BatchRule(max_wait=SAFETY_S))
        task.algorithm.before = lambda rows, names=names: names.append(threading.current_thread().name)
        play("threads", partial(ask, 50), n_agents, {"echo": task})
        assert len(names) >= 50 and all(name.startswith("agent") for name in names), names


def test_an_agent_serves_its_batch_also_while_another_agent_is_in_a_hook():
    """Agent 0 stays in a hook until agent 1 has all its replies."""
    hooked, replied, names = threading.Event(), threading.Event(), []

    class Stays(Hook):
        def post_act(self, agent):
            hooked.set()
            assert replied.wait(SAFETY_S)

    def program(agent):
        if agent.index == 0:
            agent.env.reset()
            agent.env.step(0)
        else:
            assert hooked.wait(SAFETY_S)
            try:
                ask(20, agent)
            finally:
                replied.set()

    task = echo_task(predict_rule=BatchRule(min_rows=1))
    task.algorithm.before = lambda rows: names.append(threading.current_thread().name)
    with robot_of(program, 2, task, env=Line) as robot:
        robot.run(None, Stays())
    assert len(names) == 20 and set(names) == {"agent 1"}


def test_one_request_opens_and_one_clock_closes_a_batch():
    """Agent 0 acts until agent 1 has its reply, so only the clock can close agent 1's batch."""
    for rule in (None, BatchRule(max_wait=0.02), BatchRule(max_wait=0.0), BatchRule(min_rows=50, max_wait=0.02)):
        replied = threading.Event()

        def program(agent, replied=replied):
            if agent.index == 0:
                assert replied.wait(SAFETY_S), "agent 1 waited for agent 0"
            else:
                for i in range(5):
                    agent.helpers["echo"].comm.predict(row(agent, i))
                replied.set()

        play("threads", program, 2, {"echo": echo_task(predict_rule=rule)})


def test_the_clock_closes_an_update_too():
    replied = threading.Event()

    def program(agent):
        if agent.index == 0:
            assert replied.wait(SAFETY_S), "agent 1 waited for agent 0"
        else:
            assert agent.helpers["echo"].comm.learn(update(agent, 2))["size"] == 2
            replied.set()

    for mode in ("sync", "async"):
        replied.clear()
        play("threads", program, 2, {"echo": echo_task(helper=Learner, training_rule=BatchRule(min_rows=50, max_wait=0.02))},
             mode=mode)


def test_without_a_rule_an_async_update_waits_for_nobody():
    replied = threading.Event()

    def program(agent):
        if agent.index == 0:
            assert replied.wait(SAFETY_S), "agent 1 waited for agent 0"
        else:
            agent.helpers["echo"].comm.learn(update(agent, 2))
            replied.set()

    play("threads", program, 2, {"echo": echo_task(helper=Learner)}, mode="async")


def test_a_sync_update_waits_for_the_learner_that_still_acts():
    """Agent 1 asks to learn; agent 0 acts on until it sees the request waiting, and a while longer: nothing is learned before."""
    task = echo_task(helper=Learner)

    def program(agent):
        comm = agent.helpers["echo"].comm
        if agent.index == 0:
            until(lambda: agent.robot.wrappers["echo"].trainings.rows, SAFETY_S)
            for i in range(50):
                comm.predict(row(agent, i))
            assert task.learns == 0
        assert comm.learn(update(agent, 2))["size"] == 4

    play("threads", program, 2, {"echo": task})
    assert task.learns == 1


def test_a_batch_that_was_complete_while_another_was_computed_is_served_next():
    """max_rows 1: agent 1 asks while agent 0 computes its own batch, and agent 0 acts until agent 1 has its reply."""
    task = echo_task(predict_rule=BatchRule(max_rows=1, max_wait=60.0))
    computing, replied = threading.Event(), threading.Event()

    def before(rows):
        if rows[0, 0] == 0:
            computing.set()
            until(lambda: robot.wrappers["echo"].predictions.rows, SAFETY_S)

    def program(agent):
        if agent.index == 1:
            assert computing.wait(SAFETY_S)
        agent.helpers["echo"].comm.predict(row(agent, 1))
        if agent.index == 0:
            assert replied.wait(SAFETY_S), "agent 1 waited for agent 0"
        replied.set()

    task.algorithm.before = before
    with robot_of(program, 2, task) as robot:
        robot.run()


def test_a_slow_step_of_one_agent_does_not_hold_up_the_others():
    asleep, done = threading.Event(), threading.Event()

    def program(agent):
        if agent.index == 0:
            asleep.set()
            assert done.wait(SAFETY_S)
        else:
            assert asleep.wait(SAFETY_S)
            ask(20, agent)
            agent.robot.finished = getattr(agent.robot, "finished", 0) + 1
            if agent.robot.finished == 3:
                done.set()

    play("threads", program, 4)


def test_every_thread_uses_the_number_of_cores_that_torch_was_told():
    """OpenMP keeps that number per thread, and gives a new thread all cores."""
    maps = open("/proc/self/maps").read().split() if sys.platform == "linux" else []
    paths = {part for part in maps if "libgomp" in part}
    if not paths:
        pytest.skip("torch does not use libgomp here")
    library = ctypes.CDLL(paths.pop())
    seen = {}
    task = echo_task()
    task.algorithm.before = lambda rows: seen.setdefault(threading.current_thread().name, library.omp_get_max_threads())
    play("threads", partial(ask, 20), 3, {"echo": task})
    assert set(seen.values()) == {torch.get_num_threads()} and seen, seen


# ------------------------------------------------------------------------------------------------------------------- stopping


def run_and_stop(begun, robot, release=None):
    """Runs the robot, and stops it from another thread once `begun` is set: it ends, and with a warning if that takes 5 s."""
    def stop():
        assert begun.wait(SAFETY_S)
        sleep(0.005)
        robot.request_stop()
        if release is not None:
            sleep(0.02)
            release.set()

    thread = threading.Thread(target=stop)
    thread.start()
    robot.run()
    thread.join()


class Ledger:
    """What an agent asked and how it was answered."""

    def __init__(self):
        self.replies, self.stopped = 0, 0

    def predict(self, agent, i):
        self._count(lambda: agent.helpers["echo"].comm.predict(row(agent, i)))

    def learn(self, agent):
        self._count(lambda: agent.helpers["echo"].comm.learn(update(agent, 2)))

    def _count(self, call):
        try:
            call()
        except Stopped:
            self.stopped += 1
            raise
        self.replies += 1


@pytest.mark.parametrize("what", ["predict", "learn"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_stop_while_a_batch_is_computed(what, mode):
    """Its members get their reply; whoever queued behind them is refused."""
    computing, release, ledger = threading.Event(), threading.Event(), Ledger()
    task = echo_task(helper=Learner)

    def block(rows):
        computing.set()
        assert release.wait(SAFETY_S)

    if what == "predict":
        task.algorithm.before = block
    else:
        task.algorithm.during = block

    def program(agent):
        ledger.predict(agent, 0) if what == "predict" else ledger.learn(agent)
        ledger.predict(agent, 1)

    with robot_of(program, 4, task, mode=mode) as robot:
        run_and_stop(computing, robot, release)
    assert 1 <= ledger.replies and 1 <= ledger.stopped <= 4


@pytest.fixture
def impatient(monkeypatch):
    """At a stop agents that are busy are waited for 0.1 s, not 5 s."""
    pause = threads.ThreadsDriver.pause
    monkeypatch.setattr(threads.ThreadsDriver, "pause", lambda driver, patience: pause(driver, 0.1))


def test_stop_while_a_batch_waits_for_more(impatient):
    waiting, ledger = threading.Event(), Ledger()

    def program(agent):
        if agent.index == 0:
            until(lambda: agent.robot.wrappers["echo"].predictions.rows == 3, SAFETY_S)
            waiting.set()
            until(lambda: agent.robot.wrappers["echo"].trainings.stopped, SAFETY_S)  # if it ended sooner, nobody would be left
        else:
            ledger.predict(agent, 1)

    with robot_of(program, 4, echo_task(predict_rule=BatchRule(min_rows=100))) as robot:
        run_and_stop(waiting, robot)
    assert (ledger.replies, ledger.stopped) == (0, 3)


def test_stop_while_learners_wait_for_the_last_one(impatient):
    waiting, ledger = threading.Event(), Ledger()

    def program(agent):
        if agent.index == 0:
            until(lambda: agent.robot.wrappers["echo"].trainings.rows == 6, SAFETY_S)
            waiting.set()
            until(lambda: agent.robot.wrappers["echo"].trainings.stopped, SAFETY_S)  # if it ended sooner, nobody would be left
        else:
            ledger.learn(agent)

    with robot_of(program, 4, echo_task(helper=Learner)) as robot:
        run_and_stop(waiting, robot)
    assert (ledger.replies, ledger.stopped) == (0, 3)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stop_waits_for_agents_that_go_on_after_the_updates_that_it_serves(mode, monkeypatch):
    """The reply comes within the stop, and the agent acts until its next request. It is not late, so nothing of it is ended."""
    task, looked, ended = echo_task(helper=Learner), threading.Event(), []

    def program(agent):
        agent.robot.request_stop()
        agent.helpers["echo"].comm.learn(update(agent, 2))
        looked.wait(5.0)
        ask(1, agent)
        ended.append(agent.index)

    with robot_of(program, 1, task, mode=mode) as robot:
        serving = robot.pool.driver._serving
        is_busy = serving.is_busy

        def look(trainings=False):
            if task.learns and not trainings:
                looked.set()
            return is_busy(trainings)

        monkeypatch.setattr(serving, "is_busy", look)
        robot.run()
        assert (task.learns, ended, robot.pool.lifecycle.phase) == (1, [], Phase.WAITING)
        robot.run()
        assert (task.learns, ended) == (1, [0])


def test_a_stop_while_the_last_update_of_a_round_is_served_ends_the_round():
    """In the next run an update waits for the others again."""
    task = echo_task(helper=Learner)

    def stop_at(rows):
        if task.learns in (0, 3):
            robot.request_stop()

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in range(6):
            comm.predict(row(agent, i))
            assert comm.learn(update(agent, 2))["size"] == 4

    task.algorithm.during = stop_at
    with robot_of(program, 2, task) as robot:
        for learned in (1, 4, 6):
            robot.run()
            assert (task.learns, robot.pool.driver.rounds.in_round) == (learned, False)


class Line(gym.Env):
    """Steps on a line, 10 to an episode. `stuck`, if set, is waited for in step number `at`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, stuck=None, at=3):
        self.stuck, self.at, self.steps = stuck, at, 0
        self.entered = threading.Event()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([self.t, self.steps], np.float64), {}

    def step(self, act):
        self.steps += 1
        self.t += 1
        if self.stuck is not None and self.steps == self.at:
            self.entered.set()
            assert self.stuck.wait(SAFETY_S)
        return np.array([self.t, self.steps], np.float64), 1.0, self.t == 10, False, {}


class Walk(Echo):
    """Echo that acts: always action 1."""

    def predict(self, inputs):
        return super().predict(inputs) | {"act": torch.ones(len(inputs.obs), dtype=torch.int64)}


def walking(helper, **options):
    algorithm = Walk()
    task = ComputationTask(algorithm, helper)
    algorithm.batches.clear()
    return Robot(Line, tasks={"RL": task}, driver="threads", **options)


class OneAtATime(Hook):
    """Finds a second caller inside: as a hook and as a stop condition."""

    def __init__(self, n):
        self.n, self.calls, self.callers, self.overlaps = n, 0, set(), 0
        self._inside = threading.Lock()

    def __call__(self, _):
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return False
        sleep(0.002)  # others have time to come
        self.calls += 1
        self.callers.add(threading.get_ident())
        self._inside.release()
        return self.calls >= self.n

    post_act = __call__


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_hooks_and_stop_conditions_are_called_one_at_a_time(mode):
    hook, condition = OneAtATime(100), OneAtATime(100)
    with walking(OffPolicyHelper, mode=mode, n_agents=4) as robot:
        robot.run(StopWhen(condition), hooks=hook)
    for each in (hook, condition):
        assert each.calls >= 100 and len(each.callers) > 1
        assert each.overlaps == 0


def test_a_hook_that_asks_a_task_is_told_so_at_once():
    """The others would wait for the hook, and the hook for their requests."""
    class Asks(Hook):
        def post_act(self, agent):
            agent.helpers["RL"].predict(agent.env.last[0])

    with walking(OffPolicyHelper, n_agents=2) as robot, pytest.raises(AgentFailed, match="WrongCaller: .*from a hook"):
        robot.run(100, Asks())


def test_close_between_iterations_and_while_parked():
    """After an iteration all agents are held with their replies; after a collection all are parked."""
    for _ in range(20):
        robot = walking(lambda: OnPolicyHelper(unroll=4), n_agents=3)
        robot.train_iter()
        assert robot.tasks["RL"].rows_learned == robot.env_steps == 12
        robot.close()
        robot = walking(lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=2), n_agents=3)
        robot.collect(n_step=9)
        robot.close()
        assert not framework_threads()


@pytest.fixture
def stuck(monkeypatch, impatient):
    """Names of those whom a stop does not wait for: 0 instead of 5 s. It waits for the others as long as they need."""
    names, join = [], threads.ThreadsDriver.join

    def only_those(driver, timeout):
        until(lambda: {str(late) for late in join(driver, 0.01)} <= set(names), SAFETY_S)
        return join(driver, 0.01)

    monkeypatch.setattr(threads.ThreadsDriver, "join", only_those)
    return names


def test_an_agent_stuck_in_its_environment_is_reported_and_does_not_come_back_as_a_ghost(stuck):
    release = threading.Event()
    stuck.append("agent 1")
    envs = iter([Line(), Line(release), Line()])
    robot = Robot(lambda: next(envs), tasks={"RL": echo_task(Walk())}, n_agents=3, driver="threads")
    late = robot.agents[1]
    try:
        with pytest.warns(RuntimeWarning, match=r"still busy 5 s after the stop: agent 1$"):
            robot.run(StopWhen(lambda robot: late.env.entered.is_set() and robot.env_steps > 30))
        assert [name for name in framework_threads()] == ["agent 1"]
        with (
            pytest.raises(RuntimeError, match="still busy since the last stop: agent 1"),
            pytest.warns(RuntimeWarning, match="agent 1"),
        ):
            robot.run(StopAfterSteps(10))
        assert late.signal == "stop"
    finally:
        release.set()
        stuck.clear()
    until(lambda: not framework_threads(), SAFETY_S, "the end of agent 1")
    steps = late.steps
    assert steps == 3  # it finished the step it was in, and took no other
    robot.run(StopWhen(lambda robot: late.steps > steps))
    robot.close()


def test_a_task_that_is_still_learning_is_reported(stuck):
    release, begun = threading.Event(), threading.Event()
    stuck.append("echo learn")
    task = echo_task()

    def block(rows):
        begun.set()
        assert release.wait(SAFETY_S)

    task.algorithm.during = block

    def program(agent):
        agent.helpers["echo"].comm.put_training(update(agent, 2))
        assert begun.wait(SAFETY_S)
        agent.robot.request_stop()

    robot = robot_of(program, 1, task, mode="async")
    try:
        with pytest.warns(RuntimeWarning, match="still busy 5 s after the stop: echo learn"):
            robot.run()
    finally:
        release.set()
        stuck.clear()
    until(lambda: not framework_threads(), SAFETY_S, "the end of the update")
    robot.close()


def test_ctrl_c_again_and_again():
    """Bursts of three interruptions, which also strike in the middle of the stop: no ticket and no thread is lost."""
    rng = random.Random(3)
    asked, answered = [0] * 4, [0] * 4

    def program(agent):
        comm = agent.helpers["echo"].comm
        for i in count():
            asked[agent.index] += 1
            try:
                if i % 5:
                    comm.predict(row(agent, i))
                else:
                    comm.learn(update(agent, 2))
            finally:
                answered[agent.index] += 1

    robot = robot_of(program, 4, echo_task(Echo(seconds=0.0003), helper=Learner))
    over, heard = False, 0

    def hear(signum, frame):
        """Raises in `run` only, not in this test or where an exception would be lost (callbacks of the garbage collector)."""
        nonlocal heard
        outer = frame
        while outer is not None and outer.f_code is not Robot.run.__code__:
            outer = outer.f_back
        if outer is not None and heard < 3 and frame.f_code.co_filename in OURS:
            heard += 1
            raise KeyboardInterrupt

    def burst():
        sleep(0.001 + rng.random() * 0.004)
        while not over:
            strike()
            sleep(rng.random() * 0.0005)

    before = signal.signal(signal.SIGINT, hear)
    try:
        for _ in range(60):
            over, heard = False, 0
            thread = threading.Thread(target=burst)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                robot.run()
            over = True
            thread.join()
            robot.pool.lifecycle.halt()
            assert asked == answered
            assert not framework_threads()
    finally:
        over = True
        signal.signal(signal.SIGINT, before)
    assert sum(asked) > 60
    robot.close()


LEFT_OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
from transport_fakes import Echo, Learner, Programmed, Robot, echo_task, update, partial, row
import torch

class Busy(Echo):
    def predict(self, inputs):
        for _ in range(20):
            torch.ones(100, 100) @ torch.ones(100, 100)
        return super().predict(inputs)

def program(agent):
    while True:
        agent.helpers["echo"].comm.predict(row(agent, 1))

robot = Robot(tasks={"echo": echo_task(Busy(), helper=Learner)}, agent=partial(Programmed, program), n_agents=4,
              driver="threads", mode="async")
robot.pool.lifecycle.advance()
robot.on_purpose_not_closed = True
"""


def test_a_robot_that_nobody_closed_does_not_abort_the_process():
    """A thread that comes back from torch after the end of the interpreter would: "terminate called without an active
    exception"."""
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN, str(Path(__file__).parents[1] / "fakes")], capture_output=True,
                          text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------ agents and servers that break


@pytest.mark.parametrize("way", ["returns", "raises"])
def test_an_agent_that_dies_while_its_request_is_computed(way):
    """Its reply goes nowhere; the others get theirs."""
    computing, dead = threading.Event(), threading.Event()
    task = echo_task(on_error="fail_batch")
    replies = []

    def block(rows):
        if (rows[:, 0] == 0).any():
            computing.set()
            assert dead.wait(SAFETY_S)

    task.algorithm.before = block
    failed = []

    def program(agent):
        comm = agent.helpers["echo"].comm
        if agent.index == 0:
            comm.put_prediction(row(agent, 5))
            assert computing.wait(SAFETY_S)
            if way == "raises":
                raise OSError("power failure")
            return
        replies.append(comm.get(comm.put_prediction(row(agent, 1)))["echo"].tolist())
        for i in range(20):
            ticket = comm.predict(row(agent, i))
            replies.append(ticket.out["echo"][ticket.start : ticket.start + 1].tolist())

    robot = robot_of(program, 3, task)
    robot.pool.driver._failed = lambda agent, error: failed.append((str(agent), str(error)))  # else the robot stops all
    dying = threading.Thread(target=lambda: (until(lambda: robot.agents[0] not in robot.pool.driver.agents and computing.is_set(),
                                                   SAFETY_S), dead.set()))
    dying.start()
    robot.run()
    dying.join()
    robot.close()
    assert sorted(replies) == sorted([[[a, i]] for a in (1, 2) for i in (1, *range(20))])
    assert failed == ([("agent 0", "power failure")] if way == "raises" else [])


@pytest.mark.parametrize("stage", ["serve", "reply"])
@pytest.mark.parametrize("kind", ["predictions", "trainings"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_dies_of_a_bug_fails_all_tickets_instead_of_hanging(stage, kind, mode, monkeypatch):
    robot = robot_of(lambda agent: None, 4, echo_task(helper=Learner), mode=mode)
    queue = getattr(robot.wrappers["echo"], kind)
    errors = []

    def bug(*arguments, **options):
        raise RuntimeError("a bug of the framework")

    def program(agent):
        comm = agent.helpers["echo"].comm
        try:
            for i in count():
                comm.predict(row(agent, i))
                comm.learn(update(agent, 1))
        except Exception as error:
            errors.append(error)
            raise

    for agent in robot.agents:
        agent.program = program
    if stage == "serve":
        monkeypatch.setattr(queue, "serve", bug)
    else:
        acting, failed_once = robot.pool.driver._acting, []
        original = acting.count_in

        def count_in(tickets, own=None):
            learning = threading.current_thread().name == "echo learn"
            serving = learning if kind == "trainings" else tickets and tickets[0].queue is queue
            if serving and not failed_once:
                failed_once.append(True)
                bug()
            return original(tickets, own)

        monkeypatch.setattr(acting, "count_in", count_in)
    with pytest.raises((TaskFailed, RuntimeError), match="(?s)could not go on with .*RuntimeError: a bug of the framework"):
        robot.run()
    assert len(errors) == 4
    assert not framework_threads()
    robot.close()


def test_the_last_thing_an_idle_robot_waits_for_is_an_unread_update():
    """Nobody waits for the ticket and all agents have ended: the run must still end, after the update."""
    task = echo_task(helper=Learner)

    def program(agent):
        agent.helpers["echo"].comm.put_training(update(agent, 3))

    for mode in ("sync", "async"):
        play("threads", program, 3, {"echo": task}, mode=mode)
    assert task.rows_learned == 18


# ------------------------------------------------------------------------------------------------------------- counts and signals


def test_no_agent_is_lost_from_the_counts():
    """Every way of asking, from 6 threads that change at every opportunity; at the end nobody acts, and nobody acts twice."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def program(agent):
        rng = random.Random(agent.index)
        comm = agent.helpers["echo"].comm
        for i in range(150):
            kind = rng.random()
            if kind < 0.5:
                comm.predict(row(agent, i))
            elif kind < 0.8:
                tickets = [comm.put_prediction(row(agent, i + k)) for k in range(rng.randrange(1, 4))]
                for _ in range(rng.randrange(30)):
                    pass  # so that the replies come before, while and after it begins to wait
                for k, ticket in enumerate(tickets):
                    assert comm.get(ticket)["echo"].tolist() == [[agent.index, i + k]]
            elif kind < 0.9:
                comm.learn(update(agent, 2))
            else:
                ticket = comm.put_training(update(agent, 2))
                comm.predict(row(agent, i))
                comm.get(ticket)

    try:
        for mode in ("sync", "async"):
            with robot_of(program, 6, echo_task(helper=Learner), mode=mode) as robot:
                robot.run()
                driver = robot.pool.driver
                assert (driver.rounds.acting, driver.rounds.learners, driver._round.held) == (0, set(), [])
    finally:
        sys.setswitchinterval(interval)


def test_parking_and_signals_never_miss_each_other():
    """Collections, which park the agents, cut by checkpoints, which interrupt them, and by stops: 150 in quick succession."""
    rng = random.Random(4)
    with walking(lambda: OffPolicyHelper(size=10_000, batch_size=2, learn_every=5), n_agents=4) as robot:
        for _ in range(150):
            kind = rng.random()
            before = robot.env_steps
            if kind < 0.4:
                n = 4 * rng.randrange(1, 6)
                assert robot.collect(n_step=n).n_steps == n
                assert len(robot.pool.driver.parked) == 4
            elif kind < 0.6:
                robot.checkpoint_boundary()
            elif kind < 0.8:
                robot.train_iter()
            else:
                robot.run(StopAfterSteps(rng.randrange(1, 20)))
            assert robot.env_steps >= before
        stepped = sum(agent.env.unwrapped.steps for agent in robot.agents)
        assert sum(agent.steps for agent in robot.agents) == robot.env_steps == stepped


def test_an_interruption_that_comes_while_an_agent_parks():
    """The signal is given between the agent's last look and its parking: it must obey, not sleep."""
    with walking(lambda: OffPolicyHelper(size=1000, batch_size=2, learn_every=5), n_agents=1) as robot:
        agent, driver = robot.agents[0], robot.pool.driver
        park = driver.park
        given = []

        def late(agent):
            if not given:
                given.append(agent.signal)
                agent.signal = "interrupt"
            park(agent)

        driver.park = late
        robot.collect(n_step=3)
        assert given == [None]
        assert agent.env.is_over or agent.signal is None
        assert robot.collect(n_step=5).n_steps == 5


def test_the_robots_thread_may_ask_and_teach_between_iterations():
    """All agents are held then, and no round could begin while the caller waits."""
    with walking(lambda: OnPolicyHelper(unroll=4), n_agents=2) as robot:
        for _ in range(5):
            robot.train_iter()
            agent = robot.agents[0]
            comm = agent.helpers["RL"].comm
            assert comm.predict(row(agent, 9)).out["echo"].shape[1] == 2
            assert comm.learn({name: column[:2] for name, column in _some_rows(robot).items()})["size"] == 2
            with pytest.raises(TaskFailed):
                comm.predict(row(agent, BAD))
        assert robot.tasks["RL"].learns == 10


def _some_rows(robot):
    specs = {"obs": np.zeros((2, 2)), "act": np.ones(2, np.int64), "rew": np.zeros(2), "terminated": np.zeros(2, bool),
             "truncated": np.zeros(2, bool), "obs_next": np.zeros((2, 2)), "last": np.ones(2, bool)}
    return specs


def test_an_interrupted_call_of_the_robots_thread_holds_up_nobody():
    """Ctrl-C while the main thread waits for a prediction among agents: its place in the line of waking is given on."""
    go = threading.Event()
    task = echo_task(predict_rule=BatchRule(min_rows=4))

    def program(agent):
        assert go.wait(SAFETY_S)
        ask(50, agent)

    robot = robot_of(program, 4, task)
    robot.pool.lifecycle.start()
    ghost = Communicator(robot.wrappers["echo"], robot.agents[0], robot.pool.driver)
    end_by_ctrl_c(lambda: ghost.predict((np.array([99.0, 1.0]),)), 0.05, lambda: robot.wrappers["echo"].predictions.rows)
    assert robot.pool.driver.rounds.acting == 4
    go.set()
    robot.run()
    robot.close()
    assert robot.wrappers["echo"].predictions.counters.requests == 201


def test_whoever_gives_up_a_reply_wakes_the_next_in_line():
    driver = threads.ThreadsDriver(True, print)
    tickets = [Ticket("agent", driver.waiter()) for _ in range(5)]
    for ticket in tickets:
        ticket.state = threads.WAITED
        ticket.queue = echo_task()  # anything with a kind
        ticket.queue.kind = "predict"
    driver._acting.wake(driver._acting.count_in(tickets, own=tickets[3]))
    assert [ticket.waiter.locked() for ticket in tickets] == [False, True, True, False, True]  # 3 first, for it is awake; 0 next
    driver._acting.give_up(tickets[3])
    driver.wait(tickets[0])
    assert [ticket.waiter.locked() for ticket in tickets] == [True, False, False, False, True]
    driver.wait(tickets[1])
    driver.wait(tickets[2])
    driver.wait(tickets[4])


def test_helpers_of_agents_that_only_predict_are_not_waited_for():
    """Sync: two learners train round after round while a third agent, which never learns, is busy for the whole time."""
    learning = iter([True, True, False])
    rounds = threading.Event()

    def program(agent):
        if agent.index == 2:
            assert rounds.wait(SAFETY_S), "the round waited for an agent that does not learn"
        else:
            for i in range(5):
                agent.helpers["echo"].comm.predict(row(agent, i))
                agent.helpers["echo"].comm.learn(update(agent, 2))
            rounds.set()

    task = echo_task(helper=lambda: Learner() if next(learning) else AgentHelper())
    play("threads", program, 3, {"echo": task})
    assert task.rows_learned == 20

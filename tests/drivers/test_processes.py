"""The processes driver: what it adds to the contract of tests/test_transport.py, and what happens when a worker fails."""

import gc
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
from collections import Counter
from functools import partial
from time import sleep

import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from transport_fakes import (
    BAD,
    Drift,
    Elementwise,
    Programmed,
    echo_task,
    end_by_ctrl_c,
    lives,
    living,
    row,
    until,
    update,
)

from parl_like import Agent, Hook, OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.algorithms import DQN
from parl_like.drivers.workers.hosted import HostedDriver
from parl_like.drivers.workers.processes import FORK_SERVER, LocalLink, Processes
from parl_like.environment.hooks import EpisodeStats, EveryNSteps
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps, StopWhen
from parl_like.models import MLPQ
from parl_like.process.fork_server import ForkServer
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.tickets import Counters
from parl_like.values.errors import AgentFailed, TaskFailed
from parl_like.values.spec import SpecError

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")]

TWO = Processes(workers=2)


def play(program, n_agents=1, tasks=None, driver=TWO, **options):
    tasks = {"echo": echo_task()} if tasks is None else tasks
    robot = Robot(tasks=tasks, agent=partial(Programmed, program), n_agents=n_agents, driver=driver, **options)
    with robot:
        robot.run()
    return robot


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    """No worker outlives its robot: the fork server has no child, and the folders of the sockets are gone."""
    made, make = [], FORK_SERVER.make_folder
    monkeypatch.setattr(FORK_SERVER, "make_folder", lambda where: made.append(make(where)) or made[-1])
    yield
    workers = [c for n in psutil.Process().children() for c in n.children()]
    _, alive = psutil.wait_procs(workers, 60)
    assert not alive
    assert not [folder for folder in made if os.path.exists(folder)]


# ------------------------------------------------------------------------------------------------------------- what fails in
# tasks


def ask(n, agent):
    comm = agent.helpers["echo"].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


def fail_together(agent):
    comm = agent.helpers["echo"].comm
    with pytest.raises(TaskFailed, match=r"task 'echo': predict failed for a batch of 2 "
                                         r"requests(?s:.*)transport_fakes.py(?s:.*)ArithmeticError: the row is bad"):
        comm.predict(row(agent, BAD if agent.index == 0 else 1))
    with pytest.raises(SpecError, match=f"agent {agent.index}.*task 'echo', field 'obs'.*NaN"):
        comm.predict((np.array([0.0, np.nan]),))
    ask(10, agent)


def test_a_failing_prediction_answers_its_members_in_every_worker_and_the_next_batch_works():
    robot = play(fail_together, 6)
    assert robot.wrappers["echo"].predictions.counters.errors == 1


def learn_something_bad(agent):
    agent.helpers["echo"].comm.learn({"obs": np.full((2, 2), BAD)} if agent.index == 1 else update(agent, 2))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_on_error_stop_raises_from_run_with_the_original_traceback(mode):
    with pytest.raises(TaskFailed) as caught:
        play(learn_something_bad, 3, mode=mode)
    for part in ("task 'echo': learn failed", "Traceback", "transport_fakes.py", "in learn", "ArithmeticError: the row is bad"):
        assert part in str(caught.value), part


def fall(agent):
    ask(3, agent)
    if agent.index == 2:
        raise OSError("power failure")
    ask(100_000, agent)


def test_run_reports_the_agent_that_raised_with_its_own_traceback():
    with pytest.raises(AgentFailed, match="agent 2: run_one_episode raised OSError: power failure") as caught:
        play(fall, 4)
    assert "worker 1 (agents 2 to 3)" in str(caught.value.__cause__) and "in fall" in str(caught.value.__cause__)


# ------------------------------------------------------------------------------------------------------------------- exactness


def drifting(driver, helper, n_agents=5, seed=0):
    return Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), helper)}, n_agents=n_agents, driver=driver, seed=seed,
                 trace=True)


def unrolling():
    return OnPolicyHelper(unroll=8)


def replaying():
    return OffPolicyHelper(size=500, batch_size=8, learn_every=4)


@pytest.mark.parametrize("helper", [unrolling, replaying])
def test_same_seed_and_workers_same_trace(helper):
    def trace(driver, seed=0):
        with drifting(driver, helper, seed=seed) as robot:
            robot.run(StopAfterSteps(980))  # at 1000 some agents would have begun their next episodes
            return robot.trace_hash(), robot.env_steps, robot.episodes, robot.tasks["RL"].learns

    first = trace(TWO)
    assert first == trace(TWO) and first[3] > 10
    assert first[0] != trace(TWO, 1)[0]
    if helper is unrolling:  # without a shared buffer it does not even matter where the agents are
        assert first == trace("cooperative") == trace(Processes(workers=5))


@pytest.mark.parametrize("helper", [unrolling, pytest.param(replaying, marks=pytest.mark.slow)])
def test_evaluations_between_iterations_change_nothing(helper):
    def trace(evaluating):
        with drifting(TWO, helper) as robot:
            for _ in robot.iterate(400):
                assert not evaluating or robot.evaluate(1).lengths == [50]
            return robot.trace_hash(), robot.counters()

    assert trace(True) == trace(False)


@pytest.mark.parametrize("helper", [unrolling, replaying])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(helper, tmp_path):
    with drifting(TWO, helper) as robot:
        robot.run(StopAfterSteps(700))
        robot.save(tmp_path / "state")
        robot.run(StopAfterSteps(700))
        whole = robot.trace_hash(), robot.counters()
    with drifting(TWO, helper) as robot:
        robot.load(tmp_path / "state")
        robot.run(StopAfterSteps(700))
        assert (robot.trace_hash(), robot.counters()) == whole
    with drifting(Processes(workers=3), helper) as robot, pytest.raises(ValueError, match=r"has 2 workers, this robot 3; set "
                                                                                          r"Processes\(workers=2\)"):
        robot.load(tmp_path / "state")


def test_iterations_collections_and_evaluations():
    with drifting(TWO, unrolling) as robot:
        for i in range(1, 6):
            robot.train_iter()
            assert (robot.env_steps, robot.tasks["RL"].learns, robot.iterations) == (40 * i, i, i)
        assert robot.evaluate(3).lengths == [50] * 3
    with drifting(TWO, replaying) as robot:
        episodes = robot.collect(n_episode=7)
        assert episodes.n_episodes == 7 and episodes.lengths == [50] * 7
        steps = robot.env_steps
        assert robot.collect(n_step=20).n_steps == 20
        assert robot.env_steps == steps + 20 and robot.tasks["RL"].learns == 0
        robot.train_iter()
        assert robot.tasks["RL"].learns > 0
        robot.checkpoint_boundary()
        assert robot.counters()["time_steps"] == robot.env_steps == sum(agent.steps for agent in robot.agents)
        with pytest.raises(AttributeError, match="rng: agent 0 is in a worker process; here it has index, steps"):
            robot.agents[0].rng  # noqa: B018


# ----------------------------------------------------------------------------------------------------------------------- hooks


class Acts(Hook):
    def pre_act(self, agent, act):
        pass


def test_hooks_hear_of_episodes_and_counts_and_others_are_refused_by_name():
    stats, called = EpisodeStats(), []
    with drifting(TWO, None, n_agents=4) as robot:
        robot.run(StopAfterEpisodes(8), [stats, EveryNSteps(100, lambda robot: called.append(robot.env_steps))])
        assert stats.lengths == [50] * len(stats.lengths) and len(stats.lengths) == robot.episodes >= 8
        assert [steps // 100 for steps in called] == list(range(1, robot.env_steps // 100 + 1))
        with pytest.raises(ValueError, match=r"Acts listens to pre_act, which happen in worker processes"):
            robot.run(StopAfterSteps(10), Acts())


@pytest.mark.parametrize("call", ["run", "close", "checkpoint_boundary"])
def test_halting_from_inside_a_hook_is_refused(call):
    refused = []

    class Again(Hook):
        def post_episode(self, agent, interrupted):
            with pytest.raises(RuntimeError, match="an agent cannot run or halt all agents"):
                getattr(agent.robot, call)()
            refused.append(agent.index)

    with drifting(TWO, None, n_agents=2) as robot:
        robot.run(StopAfterEpisodes(2), Again())
    assert refused


def stop_from_inside(agent):
    for name in ("run", "checkpoint_boundary", "train_iter", "evaluate", "save", "close", "add_agents"):
        with pytest.raises(RuntimeError, match="an agent cannot run or halt all agents"):
            getattr(agent.robot, name)()
    with pytest.raises(AttributeError, match="nothing: the robot is in another process"):
        _ = agent.robot.nothing
    robot = agent.robot
    assert (robot.sync, robot.n_agents, robot.trace, robot.closed, robot.stop_requested) == (True, 4, None, False, False)
    assert robot.buffers.keys() <= robot.tasks.keys() and robot.transforms.keys() <= robot.tasks.keys()
    if agent.index == 3:
        agent.robot.request_stop()
    while agent.signal is None:
        ask(1, agent)


def test_an_agent_may_ask_for_the_end_of_the_run_and_nothing_more():
    play(stop_from_inside, 4)


def test_what_cannot_go_to_a_worker_is_refused_before_one_is_started():
    with pytest.raises(ValueError, match=r"an environment itself cannot go to a worker process.*needs a factory"):
        Robot(Drift(), tasks={"RL": ComputationTask(Elementwise())}, driver="processes")
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent to a worker process: TypeError: cannot pickle '_thread.lock'"):
        play(lambda agent: lock.acquire(), 1)
    with pytest.raises(ValueError, match="Processes: workers is 0"):
        Processes(workers=0)


# ---------------------------------------------------------------------------------------------------------------------- faults


def count_to(path):
    """How often this was called with this path, in whatever process."""
    with open(path, "a") as file:
        file.write("x")
        return file.tell()


class Faulty(Drift):
    """Fails at step 5, once: in the way `fault` names."""

    def __init__(self, path, fault):
        self.path, self.fault = path, fault

    def step(self, act):
        if self.t == 5 and count_to(self.path) == 1:
            FAULTS[self.fault]()
        return super().step(act)


def _segfault():
    import ctypes

    ctypes.string_at(0)


def _hang():
    while True:
        sleep(3600)


HOARD = []


def _hoard():
    HOARD.append(np.ones(100 << 20))  # 800 MiB
    sleep(30)


def _raise():
    raise OSError("the level is corrupt")


FAULTS = {"raise": _raise, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": lambda: os._exit(3),
          "segfault": _segfault, "hang": _hang, "hoard": _hoard}


@pytest.mark.parametrize(("mode", "fault", "said"), [
    pytest.param(mode, fault, said, marks=[pytest.mark.slow] if mode == "async" and fault in ("hang", "hoard") else [])
    for mode in ("sync", "async") for fault, said in (
        ("kill", "was ended by signal 9"), ("exit", "ended with exit code 3"), ("segfault", "was ended by signal 11"),
        ("hang", "said nothing for 0.5 s"), ("hoard", "MiB of memory; memory_limit is 600 MiB"))
])
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_run_goes_on(fault, said, mode, tmp_path, caplog):
    driver = Processes(workers=2, step_limit=0.5 if fault == "hang" else 60.0,
                       memory_limit=600 << 20 if fault == "hoard" else None)
    with Robot(partial(Faulty, tmp_path / "count", fault), tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=4,
               driver=driver, mode=mode) as robot:
        with caplog.at_level(logging.WARNING):
            robot.run(StopWhen(lambda robot: robot.env_steps >= 2000 and robot.pool.driver.restarts))
        assert said in caplog.text and "is replaced" in caplog.text
        restarts = robot.pool.driver.restarts
        assert sum(w.incarnation for w in robot.pool.driver.workers) == restarts
        assert restarts == 1 or fault == "hang"  # on a machine that stands still for half a second others seem to hang, too
        assert robot.tasks["RL"].rows_learned <= robot.env_steps  # nothing twice
        assert all(worker.taken for worker in robot.pool.driver.workers)


def test_a_worker_that_hangs_when_the_run_ends_does_not_keep_it(tmp_path):
    """The other worker's agents reach the end long before the limit; the checkpoint then waits for the hanging one in vain."""
    driver = Processes(workers=2, step_limit=0.4)
    with Robot(partial(Faulty, tmp_path / "count", "hang"), tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=2,
               driver=driver, mode="async") as robot:
        robot.run(StopAfterSteps(20))
        robot.run(StopAfterSteps(300))
        assert robot.pool.driver.restarts and all(worker.up for worker in robot.pool.driver.workers)


def test_the_others_go_on_while_a_worker_is_replaced(tmp_path):
    """Async: the second worker's agents make steps while the first one is away."""
    with Robot(partial(Faulty, tmp_path / "count", "kill"), tasks={"RL": ComputationTask(Elementwise())}, n_agents=2, driver=TWO,
               mode="async") as robot:
        gone = []
        original = robot.pool.driver._lost

        def lost(worker, why=""):
            original(worker, why)
            gone.append(worker.number)

        robot.pool.driver._lost = lost
        steps_of = Counter()
        counted = robot.pool.driver.reports.count
        robot.pool.driver.reports.count = lambda worker, queues, notes: (
            steps_of.update({(worker.number, worker.incarnation): notes.get("steps", 0)}), counted(worker, queues, notes))
        robot.run(StopWhen(lambda robot: gone and steps_of[gone[0], 1] > 100 and steps_of[1 - gone[0], 0] > 100))
        assert len(gone) == 1 and steps_of[gone[0], 0] <= 6


@pytest.mark.parametrize("moment", ["queued", "in the batch", "after the reply"])
def test_a_worker_killed_around_its_request_disturbs_nobody_else(moment, tmp_path):
    """Acceptance test 7: the moments are those of the robot's process, so the kill comes from there."""
    task = echo_task()
    robot = Robot(tasks={"echo": task}, agent=partial(Programmed, partial(ask_until, str(tmp_path / "end"))), n_agents=4,
                  driver=TWO, mode="async")
    driver = robot.pool.driver
    killed = []

    def kill():
        if not killed and task.algorithm.batches and len(task.algorithm.batches) > 20:
            worker = driver.workers[0]
            killed.append(driver.link.pid(worker))
            driver.link.kill(worker)

    served, waked = driver._serve, driver.wake

    def serve(queue):
        if moment == "queued":
            kill()
        served(queue)
        if len(task.algorithm.batches) > 300:
            (tmp_path / "end").touch()

    def wake(tickets):
        waked(tickets)
        if moment == "after the reply":
            kill()

    driver._serve, driver.wake = serve, wake
    if moment == "in the batch":
        task.algorithm.before = lambda rows: kill()
    with robot:
        robot.run()
        assert len(killed) == 1 and driver.restarts == 1
        assert robot.wrappers["echo"].predictions.abandoned == 0
    served_rows = task.algorithm.served()
    assert all(n == 1 for (agent, _), n in served_rows.items() if agent >= 2)


def ask_until(path, agent):
    comm = agent.helpers["echo"].comm
    i = 0
    while not os.path.exists(path):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]
        i += 1


def test_ctrl_c_ends_the_run_at_any_moment_and_the_robot_runs_again():
    """Python's own KeyboardInterrupt, while workers start, act and stop."""
    rng = random.Random(5)
    with Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=4, driver=TWO) as robot:
        for i in range(12):
            end_by_ctrl_c(robot.run, (0.4 if i < 3 else 0.03) * rng.random())
        before = robot.env_steps
        robot.run(StopAfterSteps(200))
        assert robot.env_steps >= before + 200
        robot.train_iter()


def test_ctrl_c_between_two_messages_costs_no_worker_and_no_message():
    with Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=4, driver=TWO) as robot:
        robot.run(StopAfterSteps(100))
        link, begun = robot.pool.driver.link, [worker.incarnation for worker in robot.pool.driver.workers]
        send, sent = link.send, []

        def struck(worker, frames):
            send(worker, frames)
            sent.append(worker)
            if len(sent) == 5:
                signal.raise_signal(signal.SIGINT)

        link.send = struck
        with pytest.raises(KeyboardInterrupt):
            robot.run(StopAfterSteps(10_000))
        before = robot.env_steps
        robot.run(StopAfterSteps(100))
        assert robot.env_steps >= before + 100
        assert [worker.incarnation for worker in robot.pool.driver.workers] == begun


class Complex(Elementwise):
    """Gives what no message can carry."""

    def predict(self, inputs):
        return {**super().predict(inputs), "extra": torch.zeros(len(inputs.obs), dtype=torch.complex64)}


def test_what_no_message_can_carry_is_refused_and_the_robot_still_closes():
    with Robot(Drift, tasks={"RL": ComputationTask(Complex())}, n_agents=2, driver=TWO) as robot:
        for _ in range(2):
            with pytest.raises(Exception, match=r"got complex64; convert it with astype"):
                robot.run(StopAfterSteps(10))
    assert robot.closed


def test_a_collection_may_be_counted_in_numpys_numbers():
    with Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), replaying)}, n_agents=2, driver=TWO) as robot:
        robot.collect(n_step=np.int64(20))
        assert robot.env_steps >= 20


class Broken(Drift):
    made = 0

    def __init__(self, path):
        if count_to(path) > 1:  # the first one is the robot's own trial
            raise FileNotFoundError("levels.txt")


class Alone(Agent):
    """Acts without a task."""

    def run_one_episode(self):
        self.env.reset()
        while self.env.episode_length < 50:
            self.env.step(1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tasks", [[], ["echo"]])
def test_agents_that_ask_for_nothing_end_with_the_run(tasks):
    with Robot(Drift, agent=Alone, tasks={name: echo_task() for name in tasks}, n_agents=3, driver=TWO) as robot:
        robot.run(StopAfterSteps(2_000))
        assert 2_000 <= robot.env_steps < 3_000
        robot.run(StopAfterSteps(2_000))
        assert 4_000 <= robot.env_steps < 6_000



def test_an_environment_that_cannot_be_built_in_a_worker_ends_the_run_with_its_error(tmp_path):
    with Robot(partial(Broken, tmp_path / "count"), tasks={"RL": ComputationTask(Elementwise())}, n_agents=2,
               driver=TWO) as robot:
        with pytest.raises(AgentFailed, match=r"worker . .agents . to ..: building its agents raised FileNotFoundError: "
                                              r"levels.txt") as caught:
            robot.run(StopAfterSteps(10))
        assert "in __init__" in str(caught.value.__cause__)


class Fragile(Drift):
    def step(self, act):
        os._exit(7)


def test_an_environment_that_raises_is_rebuilt_where_that_is_wanted(tmp_path, caplog):
    """F01: its agent begins anew; rows of the cut episode keep their cut, and nobody else hears of it."""
    driver = Processes(workers=2, agent_restarts=3)
    with Robot(partial(Faulty, tmp_path / "count", "raise"), tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=4,
               driver=driver) as robot:
        with caplog.at_level(logging.WARNING):
            robot.run(StopAfterSteps(800))
        assert robot.pool.driver.agent_restarts == 1 and robot.pool.driver.restarts == 0
        assert "the level is corrupt" in caplog.text and "in _raise" in caplog.text
        assert robot.env_steps >= 800 and robot.tasks["RL"].rows_learned >= 768


class Cursed(Drift):
    def reset(self, *, seed=None, options=None):
        raise OSError("no level")


def test_an_environment_that_always_raises_ends_the_run_after_so_many_tries(caplog):
    """F02."""
    driver = Processes(workers=1, agent_restarts=3)
    with Robot(Cursed, tasks={"RL": ComputationTask(Elementwise())}, n_agents=1, driver=driver) as robot:
        with caplog.at_level(logging.WARNING), pytest.raises(AgentFailed, match=r"agent 0: its environment raised in "
                                                                                r"reset\(seed=.*OSError: no level"):
            robot.run(StopAfterSteps(10))
        assert robot.pool.driver.agent_restarts == 3


def test_a_worker_that_dies_again_and_again_ends_the_run():
    driver = Processes(workers=1, max_restarts=3)
    with Robot(Fragile, tasks={"RL": ComputationTask(Elementwise())}, n_agents=1, driver=driver) as robot:
        with pytest.raises(AgentFailed, match=r"worker 0 .*ended with exit code 7; it was replaced 3 times within 60 s"):
            robot.run(StopAfterSteps(10))
        assert robot.pool.driver.restarts == 3


def test_an_idle_fork_server_ends_and_the_next_robot_gets_another():
    play(partial(ask, 2), 2)
    FORK_SERVER.close()
    server = ForkServer(FORK_SERVER.target)
    first = server.start(cloudpickle.dumps((sys.path, b'')))
    process = server._process
    assert first.wait(60) and first.code == 1  # a text is no recipe
    process.kill()
    process.wait(60)
    second = server.start(cloudpickle.dumps((sys.path, b'')))
    assert second.wait(60) and server._process is not process
    server.close()


def test_many_starts_and_stops_leave_nothing_behind():
    files = lambda: len(os.listdir("/proc/self/fd"))  # noqa: E731
    play(partial(ask, 2), 2)
    before = files()
    for _ in range(6):
        play(partial(ask, 2), 2)
    assert files() <= before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_200_starts_and_stops_of_a_worker_leak_nothing():
    """F44: no descriptor, no thread, no shared memory, and less than 0.1 MB for each."""
    process = psutil.Process()
    one = Processes(workers=1)

    def used():
        gc.collect()
        return process.num_fds(), process.num_threads(), len(os.listdir(os.environ.get("PARL_LIKE_SHM",
                                                                                       "/dev/shm"))), process.memory_info().rss

    def cycle():
        with Robot("CartPole-v1", tasks={"RL": ComputationTask(partial(DQN, MLPQ(*spaces)))}, driver=one) as robot:
            robot.run(StopAfterSteps(2))

    with gym.make("CartPole-v1") as env:
        spaces = env.observation_space, env.action_space
    for _ in range(20):  # what is made once
        cycle()
    before = used()
    for _ in range(200):
        cycle()
    after = used()
    assert after[:3] <= before[:3] and after[3] - before[3] < 200 * 0.1e6, (before, after)


def test_all_workers_killed_at_once_are_all_replaced(caplog):
    """F08; said once, and at the end how often it happened again."""
    killed = []

    class KillAll(Hook):
        def post_episode(self, agent, interrupted):
            driver = agent.agent_pool.driver
            if not killed:
                killed.extend(driver.link.pid(worker) for worker in driver.workers)
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

    with drifting(TWO, unrolling, n_agents=4) as robot:
        robot.run(StopWhen(lambda robot: robot.pool.driver.restarts >= 2 and robot.env_steps >= 2000), KillAll())
        assert len(killed) == 2 == robot.pool.driver.restarts and robot.tasks["RL"].learns > 10
        said = "was ended by signal 9; it is replaced"
        assert sum(said in record.getMessage() for record in caplog.records) == 1
    assert "1 more workers or agents began anew for the same reason: was ended by signal 9" in caplog.text


class Uneven(Drift):
    """One of those in workers is slow; the first is made where the robot is."""

    def __init__(self, path):
        self.slow = count_to(path) == 2

    def step(self, act):
        if self.slow:
            sleep(0.06)
        return super().step(act)


def run_until_uneven(robot, caplog):
    """Until one of two agents is called slow, and the other has taken three times its steps: as many, if somebody waited."""
    robot.run(StopWhen(lambda robot: "is slow" in caplog.text))
    robot.checkpoint_boundary()
    while max(steps := [agent.steps for agent in robot.agents]) <= 3 * min(steps):
        robot.run(StopAfterSteps(500))
        robot.checkpoint_boundary()


def test_a_worker_100_times_slower_is_named_and_holds_up_nobody(tmp_path, caplog):
    """F06: in async mode the batches of the others do not wait for it."""
    task = ComputationTask(Elementwise(), unrolling)
    with Robot(partial(Uneven, str(tmp_path / "count")), tasks={"RL": task}, n_agents=2, driver=TWO, mode="async") as robot:
        run_until_uneven(robot, caplog)
    assert caplog.text.count("is slow: a turn of its agents takes") == 1 and "nobody waits for it" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow)
                                                       for one in (signal.SIGTERM, signal.SIGINT))])
def test_workers_end_with_the_robots_process(number, tmp_path):
    """Whatever ends it, also while an environment hangs: no process is left."""
    script = textwrap.dedent(f"""
        import os, sys, time
        sys.path[:0] = {sys.path!r}
        import gymnasium as gym
        from drivers.test_processes import Drift, Elementwise
        from parl_like import ComputationTask, Robot
        from parl_like.drivers.workers.processes import Processes

        class Slow(Drift):
            def step(self, act):
                os.write(1, b"pid %d\\n" % os.getpid())
                time.sleep(3600)

        if __name__ == "__main__":
            with Robot(Slow, tasks={{"RL": ComputationTask(Elementwise())}}, n_agents=2, driver=Processes(workers=2)) as robot:
                robot.run()
    """)
    (tmp_path / "robot.py").write_text(script)
    folders = tempfile.mkdtemp(prefix="t")  # a socket's path may have some 100 characters
    words = [sys.executable, tmp_path / "robot.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env={**os.environ, "PARL_LIKE_SHM": folders}) as process:
        try:
            pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
            family = [psutil.Process(pid) for pid in pids] + psutil.Process(process.pid).children()
            process.send_signal(number)
            until(lambda: not living(family), what="the end of all processes")
            until(lambda: not os.listdir(folders), what="the end of the folder")
        finally:
            process.kill()
    shutil.rmtree(folders)


ROBOT = """
from drivers.test_processes import TWO, drifting, unrolling
from parl_like.environment.stop_conditions import StopAfterSteps

if __name__ == "__main__":
    with drifting(TWO, unrolling) as robot:
        robot.run(StopAfterSteps(10**9))
"""


@pytest.mark.parametrize("wait_s", [pytest.param(0.0, marks=pytest.mark.slow), 0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_robot_killed_while_its_workers_are_prepared_leaves_no_memory(wait_s):
    """What forks the workers takes a second or two to import everything first."""
    folders = tempfile.mkdtemp(prefix="t")  # a socket's path may have some 100 characters
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PARL_LIKE_SHM": folders}
    with subprocess.Popen([sys.executable, "-c", ROBOT], env=environment) as process:
        try:
            until(lambda: os.listdir(folders), what="the folder")
            sleep(wait_s)
            family = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    until(lambda: not living(family), what="the end of all processes")
    until(lambda: not os.listdir(folders), what="the end of the folder")
    os.rmdir(folders)


def test_a_robot_in_a_thread_keeps_its_workers_when_the_thread_ends():
    with drifting(TWO, None, n_agents=2) as robot:
        thread = threading.Thread(target=robot.run, args=(StopAfterSteps(100),))
        thread.start()
        thread.join()
        robot.run(StopAfterSteps(100))
        assert robot.pool.driver.restarts == 0 and robot.env_steps >= 200


def ask_with_one_bad(path, agent):
    comm = agent.helpers["echo"].comm
    for i in range(5):
        asked = BAD if (agent.index, i) == (3, 2) else i
        try:
            ticket = comm.predict(row(agent, asked))
            assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]
        except TaskFailed:
            assert (agent.index, i) == (3, 2)
            count_to(path)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_of_a_task_that_bisects_only_the_agent_with_the_bad_record_hears_of_it(mode, tmp_path):
    """F11, with the agents of a worker sharing a message."""
    task = echo_task(bisect=True)
    robot = play(partial(ask_with_one_bad, str(tmp_path / "failures")), 8, {"echo": task}, mode=mode)
    assert count_to(tmp_path / "failures") == 2  # once before
    served = task.algorithm.served()
    assert all(served[float(index), float(i)] for index in range(8) for i in range(5) if (index, i) != (3, 2))
    assert robot.metrics()["echo/predict/errors"] >= 1


class Nan(Drift):
    def step(self, act):
        obs, *rest = super().step(act)
        return (obs * np.nan, *rest) if self.t == 7 else (obs, *rest)


def test_values_that_workers_drop_are_counted_here():
    """F09"""
    agent = partial(Agent, on_bad_value="drop")
    with Robot(Nan, tasks={"RL": ComputationTask(Elementwise(), unrolling)}, agent=agent, n_agents=4, driver=TWO) as robot:
        robot.run(StopAfterSteps(400))
        bad = robot.metrics()["bad_values"]
        assert 400 / 7 - 8 <= bad <= 400 / 7 + 8 and robot.episodes == 0


def test_a_worker_killed_while_its_state_is_asked_for_is_asked_again(tmp_path):
    with drifting(TWO, unrolling) as robot:
        robot.run(StopAfterSteps(200))
        robot.checkpoint_boundary()
        driver, send = robot.pool.driver, LocalLink.send
        killed = []

        def kill(link, seat, frames):
            if not killed and seat.number == 1:
                killed.append(seat)
                link.kill(seat)
            else:
                send(link, seat, frames)

        driver.link.send = partial(kill, driver.link)
        robot.save(tmp_path / "state")
        assert killed and driver.restarts == 1
        robot.run(StopAfterSteps(200))


def test_a_worker_whose_message_cannot_be_read_is_replaced(caplog):
    """What else it had sent dies with it: its successor does not stand for it."""
    with drifting(TWO, unrolling) as robot:
        robot.run(StopAfterSteps(200))
        driver, receive = robot.pool.driver, robot.pool.driver.link.receive
        broken = []

        def garbled():
            came = list(receive())
            if came and not broken:
                broken.append(came[0][0])
                came[:1] = [(came[0][0], [b"PLK?and more"]), (came[0][0], [b"more of it"])]
            return came

        driver.link.receive = garbled
        robot.run(StopAfterSteps(200))
        assert [worker.incarnation for worker in driver.workers] == [worker in broken for worker in driver.workers]
        assert caplog.text.count("sent a message that cannot be read: version: expected protocol") == 1


def frozen(robot, number=0):
    seat = robot.pool.driver.workers[number]
    pid = robot.pool.driver.link.pid(seat)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_frozen_worker_is_replaced_also_between_runs(tmp_path):
    with drifting(Processes(workers=2, step_limit=0.5), unrolling) as robot:
        robot.run(StopAfterSteps(200))
        frozen(robot)
        robot.save(tmp_path / "state")
        assert robot.pool.driver.restarts and robot.pool.driver.workers[0].incarnation


def test_a_worker_that_was_stopped_for_a_while_goes_on(tmp_path):
    """SIGSTOP and SIGCONT within `step_limit`: nothing is lost, nothing is replaced."""
    with drifting(TWO, unrolling, n_agents=4) as robot:
        robot.train_iter()
        pid = frozen(robot)
        threading.Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()
        for _ in range(5):
            robot.train_iter()
        assert robot.pool.driver.restarts == 0 and robot.tasks["RL"].rows_learned == robot.env_steps == 6 * 32


def test_more_than_a_thousand_open_files_are_no_hindrance():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2000:
        pytest.skip("this system allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2000), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        play(partial(ask, 5), 4)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Parent(Drift):
    """Its environment begins a process of its own."""

    def __init__(self, path):
        if count_to(path) > 1:  # the first one is made where the robot is
            with open(path + ".pid", "a") as file:
                file.write(f"{subprocess.Popen(['sleep', '3600']).pid}\n")


@pytest.mark.parametrize("kill", [True, False])
def test_what_environments_have_started_ends_with_their_worker(kill, tmp_path):
    path = str(tmp_path / "count")
    with Robot(partial(Parent, path), tasks={"RL": ComputationTask(Elementwise(), unrolling)}, n_agents=2, driver=TWO) as robot:
        robot.run(StopAfterSteps(100))
        if kill:
            seat = robot.pool.driver.workers[0]
            robot.pool.driver.link.kill(seat)
            robot.run(StopWhen(lambda robot: seat.incarnation and seat.running))
    with open(path + ".pid") as file:
        children = [int(line) for line in file]
    assert len(children) == 2 + kill
    for pid in children:
        until(lambda pid=pid: not lives(pid), what="the end of what it began")


# ------------------------------------------------------------------------------------------------ full batches over workers


@pytest.mark.parametrize(("max_rows", "workers", "agents"), [(12, 2, 16), (5, 2, 16), (7, 3, 12), (16, 2, 16), (20, 2, 16)])
def test_batches_of_workers_are_as_full_as_those_of_one_process(max_rows, workers, agents):
    """The rows of a worker's request go on in the next batch, and all agents come forward alike."""
    sizes = []
    for driver in ("cooperative", Processes(workers=workers)):
        task = echo_task(predict_rule=BatchRule(max_rows=max_rows))
        robot = play(partial(ask_in_order, 30), agents, {"echo": task}, driver)
        assert max(len(batch) for batch in task.algorithm.batches) <= max_rows
        assert robot.wrappers["echo"].predictions.counters.requests == 30 * agents
        sizes.append(len(task.algorithm.batches))
    assert sizes[1] <= 1.1 * sizes[0]


def ask_in_order(n, agent):
    comm = agent.helpers["echo"].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


def test_a_worker_is_waited_for_where_it_is_back_sooner_than_a_batch_is_served():
    def patience(served_in, *turns):
        queue = types.SimpleNamespace(counters=Counters())
        queue.counters.computes.extend(served_in)
        workers = [types.SimpleNamespace(running=True, quiet=quiet, turn_s=turn) for turn, quiet in turns]
        return HostedDriver._patience_for(types.SimpleNamespace(workers=workers), queue)

    busy, waits = False, True
    assert patience([0.007] * 8, (0.001, busy), (0.001, waits)) == 0.002
    assert patience([1.0, *[0.007] * 8], (0.001, busy), (0.003, busy)) == 0.006  # the last eight batches count
    assert patience([0.007] * 8, (0.009, busy), (0.001, waits)) == 0.0
    assert patience([0.0005] * 8, (0.001, busy)) == 0.0
    assert patience([], (0.001, busy)) == patience([0.007]) == 0.0


class Talkative(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, act):
        raise ValueError("this is what went wrong" + "x" * 20_000_000)


def test_a_very_long_text_of_an_error_is_told_and_not_taken_for_a_silence():
    with Robot.of("DQN", Talkative, n_agents=2, driver="processes") as robot:
        with pytest.raises(AgentFailed, match="this is what went wrong.*characters left out") as told:
            robot.run(100)
    assert len(str(told.value)) < 60_000

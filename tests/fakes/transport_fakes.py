"""Fakes for the tests of the transport: a task that answers what it was asked, and agents that run one function once."""

import signal
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from time import perf_counter, sleep

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch

from parl_like import Agent, AgentHelper, ComputationTask, Robot
from parl_like.drivers.ray.cluster import Ray
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.model import Model

torch.set_num_threads(1)

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
ACT = gym.spaces.Discrete(2)
BAD = -1.0
"""The number in an observation that makes `Echo` fail."""


class Weights(Model):
    """`n` parameters of `size` numbers, all 0."""

    def __init__(self, n=1, size=1):
        super().__init__(OBS, ACT)
        self.parts = torch.nn.ParameterList(torch.zeros(size) for _ in range(n))


class Echo(Algorithm):
    """Answers every row with itself, and with the size of its batch. Fails where a row's second number is `BAD`.

    Learning answers every row with itself and the batch with its size; each optimiser step adds 1 to every parameter.

    Args:
        seconds: Sleep in each prediction (without the GIL, as a forward pass does).
        steps: Optimiser steps per training batch.

    Attributes:
        batches, updates: The rows of every batch predicted and learned from, [N, 2] arrays.
        before, during: Called in the middle of each prediction and of each learning step.
    """

    def __init__(self, model=None, seconds=0.0, steps=1, short=False):
        super().__init__(Weights() if model is None else model)
        self.seconds, self.steps, self.short = seconds, steps, short
        self.batches, self.updates_seen = [], []
        self.before = self.during = lambda rows: None
        self.alone = threading.Lock()  # predictions of one task never overlap

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    def predict(self, inputs):
        rows = inputs.obs
        assert self.alone.acquire(blocking=False), "two predictions at once"
        try:
            self.batches.append(rows.numpy().copy())
            self.before(rows)
            if self.seconds:
                sleep(self.seconds)
            if (rows[:, 1] == BAD).any():
                raise ArithmeticError("the row is bad")
        finally:
            self.alone.release()
        n = len(rows)
        weights = {f"w{i}": part.expand(n, -1) for i, part in enumerate(self.model.parts)}
        return {"echo": rows[: n - 1] if self.short else rows, "size": torch.full((n,), n), **weights}

    def minibatches(self, batch):
        self.updates_seen.append(batch.obs.numpy().copy())
        for _ in range(self.steps):
            yield batch

    def learn(self, batch):
        self.during(batch.obs)
        if (batch.obs[:, 1] == BAD).any():
            raise ArithmeticError("the row is bad")
        out = {"loss": -sum(part.sum() for part in self.model.parts), "size": float(len(batch.obs)), "row": batch.obs * 1.0}
        return out | ({"row": batch.obs[1:]} if self.short else {})

    def served(self):
        """How often each row was predicted."""
        return Counter(tuple(row) for batch in self.batches for row in batch.tolist())


class Learner(AgentHelper):
    """Keeps nothing, and is waited for in sync rounds."""

    learns = True


class Programmed(Agent):
    """Runs a function of itself once, in place of episodes; ends with it."""

    def __init__(self, program):
        super().__init__()
        self.program = program

    def run(self):
        self.program(self)


def echo_task(algorithm=None, **options):
    algorithm = algorithm or Echo()
    task = ComputationTask(algorithm, **options)
    algorithm.batches.clear()  # of the trial when the task was built
    return task


def play(driver, program, n_agents=1, tasks=None, **options):
    """Every agent runs `program(agent)` once, under a driver or, 'inline', one after the other in calls from here.

    Args:
        tasks: Name → task; None: one that echoes.

    Returns:
        The robot, closed. What a program raised is raised.
    """
    if tasks is None:
        tasks = {"echo": echo_task()}
    inline = driver == "inline"
    robot = Robot(tasks=tasks, agent=partial(Programmed, program), n_agents=n_agents, driver="cooperative" if inline else driver,
                  **options)
    with robot:
        if inline:
            for agent in robot.agents:
                program(agent)
        else:
            robot.run()
    return robot


def row(agent, i):
    return (np.array([agent.index, i], np.float64),)


def update(agent, n, value=0.0):
    """A training request of `n` rows: [agent, 0], [agent, 1], …"""
    obs = np.stack([np.full(n, float(agent.index)), np.arange(n) + value], 1)
    return {"obs": obs}


def until(condition, seconds=280.0, what="condition"):
    """Waits in small sleeps; the time is a safety net, within the limit of a test."""
    end = perf_counter() + seconds
    while not condition():
        assert perf_counter() < end, f"{what} did not come within {seconds} s"
        sleep(0.0005)


def living(processes):
    """Those that have not ended; that somebody takes note of it is the business of their new parent."""
    out = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it ends between the two questions
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process)
    return out


def lives(pid):
    try:
        return bool(living([psutil.Process(pid)]))
    except psutil.NoSuchProcess:
        return False


def end_by_ctrl_c(call, seconds=0.0, when=lambda: True):
    """Calls `call()`, which Ctrl-C in the main thread ends: after so many seconds, and not before `when()`.

    Should it come where Python loses exceptions (in a callback of the garbage collector), it comes again, much later.
    """
    over = threading.Event()

    def strike():
        until(when)
        wait = seconds
        while not over.wait(wait):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            wait = 5.0

    thread = threading.Thread(target=strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            call()
    finally:
        over.set()
        thread.join()


def framework_threads():
    """Names of the living threads that a robot started."""
    ours = ("echo", "agent", "RL", "goal", "evaluator")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]


class Drift(gym.Env):
    """The observation is a number that the actions move, from a random start: an agent's actions decide what it asks next."""

    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=3).astype(np.float32), 0
        return self.x, {}

    def step(self, act):
        self.x = (0.9 * self.x + np.eye(3, dtype=np.float32)[act]).astype(np.float32)
        self.t += 1
        return self.x, float(self.x[0]), False, self.t == 50, {}


ON_RAY = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800),
          pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")]
OVER_RAY = pytest.param(Ray(workers=2, num_cpus=0, start_limit=1800.0, step_limit=1800.0), id="ray", marks=ON_RAY)
"""A driver; for modules that import the fixtures `one_ray` and `connected`."""


@pytest.fixture(scope="module")
def one_ray():
    """An instance that all robots of a module share: each of its own would take seconds."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def connected(request):
    if request.node.get_closest_marker("xdist_group"):
        request.getfixturevalue("one_ray")


@pytest.fixture(autouse=True, scope="module")
def no_fork_server_stays():
    """Of modules that import it; other tests count this process's children."""
    yield
    from parl_like.drivers.workers.processes import FORK_SERVER

    FORK_SERVER.close()


class Weighted(Model):
    def __init__(self):
        super().__init__(Drift.observation_space, Drift.action_space)
        self.w = torch.nn.Parameter(torch.ones(3))


class Elementwise(Algorithm):
    """Logits are the observation times the parameters: exact in every row, whatever the batch."""

    def __init__(self):
        super().__init__(Weighted())

    def predict(self, inputs):
        return {"logits": inputs.obs * self.model.w}

    def explorer(self):
        return Categorical()

    def learn(self, batch):
        return {"loss": (batch.obs * self.model.w).sum(-1).mul(batch.rew.float()).mean()}

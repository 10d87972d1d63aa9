"""Agents that call `learn()` themselves, as the design document lets them; whom an update waits for; and who may not ask."""

import sys
import threading
from functools import partial
from itertools import count

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import ACT, POSITION, Corridor, a2c, dqn, robot_of
from transport_fakes import (  # noqa: F401 - fixtures
    OVER_RAY,
    Echo,
    connected,
    echo_task,
    one_ray,
    play,
    row,
    update,
)

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.run import diagnosis
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values.errors import AgentFailed, TaskFailed, WrongCaller

WORKERS = [Processes(workers=2)] if sys.platform == "linux" else []
each_driver = pytest.mark.parametrize("driver", ["cooperative", "threads", *WORKERS, OVER_RAY],
                                      ids=lambda one: getattr(one, "name", one))
each_driver_with_workers = pytest.mark.parametrize("driver", [*WORKERS, OVER_RAY], ids=lambda one: one.name)
each_local_driver = pytest.mark.parametrize("driver", ["cooperative", "threads"])
INTERVAL = 5
ABOVE = gym.spaces.Dict({"obs": POSITION, "prev": POSITION})
BELOW = gym.spaces.Dict({"obs": POSITION, "goal": POSITION})


class StepAgent(Agent):
    """The document's own example: a goal from [obs, previous goal], actions from [obs, goal]. The goal task learns whenever a
    goal was left, the other one every `INTERVAL` steps. Two episodes of 20 steps, with goals 3 to 7 places ahead."""

    def run(self):
        for _ in range(2):
            self.run_one_episode()

    def run_one_episode(self):
        top, bottom = self.helpers["goal"], self.helpers["RL"]
        obs, _ = self.env.reset()
        prev = np.zeros(1, np.float32)
        over = False
        while not over:
            start, total = obs, 0.0
            ahead = top.predict({"obs": obs, "prev": prev})
            goal = obs + 3 + (self.index + self.env.episode_length) % 5
            while not over and (obs is start or obs[0] < goal[0]):
                seen = {"obs": obs, "goal": goal}
                act = bottom.predict(seen)
                obs, rew, terminated, truncated, info = self.env.step(act)
                total, over = total + rew, terminated or truncated
                bottom.store(seen, act, rew, {"obs": obs, "goal": goal}, terminated, truncated, info)
                if self.steps % INTERVAL == 0:
                    assert np.isfinite(bottom.learn()["loss"])
            top.store({"obs": start, "prev": prev}, ahead, total, {"obs": obs, "prev": goal}, terminated, truncated)
            ready, result = top.ready(), top.learn()
            assert (result is not None) >= ready  # (another agent may have stored the row that was missing since)
            prev = goal


class Top(gym.Env):
    observation_space, action_space = ABOVE, gym.spaces.Discrete(5)


class Bottom(gym.Env):
    observation_space, action_space = BELOW, ACT


@each_driver
@pytest.mark.parametrize("n_agents", [1, 4, 64])
def test_the_documents_example(driver, n_agents):
    """40 steps of each agent are learned from in updates of 5, and no row is too old for that; goals as soon as there are 6."""
    tasks = {"goal": ComputationTask(dqn(Top), lambda: OffPolicyHelper(size=6400, batch_size=6, learn_every=None)),
             "RL": ComputationTask(a2c(Bottom), lambda: OnPolicyHelper(unroll=64))}
    with Robot(lambda: Corridor(20), tasks=tasks, agent=StepAgent, n_agents=n_agents, driver=driver) as robot:
        robot.run()
        assert (robot.env_steps, tasks["RL"].rows_learned) == (40 * n_agents, 40 * n_agents)
        assert robot.wrappers["RL"].trainings.counters.requests == 8 * n_agents
        assert not any(robot.statistics.rows.dropped().values())
        updates = robot.wrappers["goal"].trainings.counters
        assert updates.rows == 6 * updates.requests > 0
        if n_agents == 1:  # goals of 3, 6, 7 and 4 places in each episode; the first 5 are too few
            assert updates.requests == 8 - 5
        assert set(robot.never_learned()) == set()


# ---------------------------------------------------------------------------------------------------------- nobody starves


class OneLearns(Agent):
    """Agent 0 calls `learn()` every 10 steps; the others store, and never call it."""

    def run_one_episode(self):
        helper = self.helpers["RL"]
        obs, _ = self.env.reset()
        while not self.env.is_over:
            act = helper.predict(obs)
            obs_next, rew, terminated, truncated, _ = self.env.step(act)
            self.keep(helper, obs, act, rew, obs_next, terminated, truncated)
            obs = obs_next

    def keep(self, helper, *row):
        helper.store(*row)
        if self.index == 0 and self.steps % 10 == 0:
            helper.learn()


class OneStores(OneLearns):
    """Agent 0 learns by its schedule; the others have the same helper, and never store a row."""

    def keep(self, helper, *row):
        if self.index == 0:
            helper.store(*row)


def endless(algorithm, helper, agent, driver, serve="central", **options):
    task = ComputationTask(algorithm(), helper, serve=serve, **options)
    return Robot(lambda: Corridor(1000, "truncated"), tasks={"RL": task}, agent=agent, n_agents=3, driver=driver)


@each_driver
@pytest.mark.parametrize(("algorithm", "helper", "agent"), [
    (a2c, lambda: OnPolicyHelper(unroll=100_000), OneLearns),
    (dqn, lambda: OffPolicyHelper(batch_size=8, learn_every=None), OneLearns),
    (dqn, lambda: OffPolicyHelper(batch_size=8, learn_every=10**9), OneLearns),
    (a2c, lambda: OnPolicyHelper(unroll=10), OneStores),
    (dqn, lambda: OffPolicyHelper(size=300, batch_size=8, learn_every=10), OneStores),
], ids=["on-policy", "off-policy", "off-policy, one day", "one stores on-policy", "one stores off-policy"])
def test_an_update_waits_only_for_agents_that_have_one_due(driver, algorithm, helper, agent):
    """Once agent 0 stopped at its first update while the others took thousands of steps, and `train_iter` never returned."""
    with endless(algorithm, helper, agent, driver) as robot:
        for i in range(1, 6):
            robot.train_iter()
            assert robot.tasks["RL"].learns == i
        robot.checkpoint_boundary()
        steps = [agent.steps for agent in robot.agents]
        assert 50 <= steps[0] <= 80
        if driver == "cooperative":  # elsewhere nobody waits for an agent that has no update to reach
            assert max(steps) - min(steps) <= 10


@each_driver_with_workers
@pytest.mark.parametrize("agent", [OneLearns, OneStores])
def test_an_update_does_not_wait_for_workers_whose_replicas_never_need_the_robot(agent, driver):
    unroll = 10 if agent is OneStores else 100_000
    with endless(a2c, lambda: OnPolicyHelper(unroll=unroll), agent, driver, serve="replica") as robot:
        for i in range(1, 6):
            robot.train_iter()
            assert robot.tasks["RL"].learns == i


class Forgets(OneLearns):
    def keep(self, helper, *row):
        helper.store(*row)


@each_driver
def test_an_iteration_in_which_nobody_asks_for_an_update_ends_with_the_cause(driver, monkeypatch):
    """It waited for ever; `run(stop)` never did."""
    monkeypatch.setattr(diagnosis, "UNASKED", 50)
    with endless(dqn, lambda: OffPolicyHelper(batch_size=8, learn_every=None), Forgets, driver) as robot:
        for iteration in (robot.train_iter, lambda: list(robot.iterate(10**9))):
            before = robot.env_steps
            with pytest.raises(AgentFailed, match=r"taken 50 steps each .*task 'RL' have learn_every=None, so they learn"):
                iteration()
            assert robot.env_steps >= before + 3 * 50
        robot.run(StopAfterSteps(300))
        assert set(robot.never_learned()) == {"RL"}
        if driver == "cooperative":
            assert "rows were stored, but no agent calls helpers['RL'].learn()" in robot.never_learned()["RL"]


def test_an_update_that_comes_late_is_waited_for(monkeypatch):
    """Agent 0's, after 10 steps of each."""
    monkeypatch.setattr(diagnosis, "UNASKED", 11)
    with endless(dqn, lambda: OffPolicyHelper(batch_size=8, learn_every=None), OneLearns, "cooperative") as robot:
        for i in range(1, 6):
            robot.train_iter()
            assert robot.tasks["RL"].learns == i


@each_driver
def test_max_wait_holds_in_sync_mode(driver):
    """Agent 0 has an update every 5 steps, the others one in 100,000, for which it would have to wait."""
    unrolls = count()

    def helper():
        return OnPolicyHelper(unroll=100_000 if next(unrolls) % 3 == 0 else 5)

    class Slow(OneLearns):
        def keep(self, helper, *row):
            helper.store(*row)
            if self.index == 1:
                threading.Event().wait(0.001)

    with endless(a2c, helper, Slow, driver, training_rule=BatchRule(max_wait=0.02)) as robot:
        for i in range(1, 4):
            robot.train_iter()
            assert robot.tasks["RL"].learns >= i


def test_agents_behind_the_sender_are_waited_for_and_those_beside_it_are_not():
    """Agent 0 calls `learn()` every 10 steps, agent 1 every 4; they take turns."""
    class Paces(OneLearns):
        def keep(self, helper, *row):
            helper.store(*row)
            if self.steps % (10 if self.index == 0 else 4) == 0:
                asked.append((self.index, self.steps))
                helper.learn()
                asked.append((self.index, self.steps))

    asked = []
    task = ComputationTask(a2c(), lambda: OnPolicyHelper(unroll=100, store_policy=True))
    with Robot(lambda: Corridor(1000), tasks={"RL": task}, agent=Paces, n_agents=2) as robot:
        for _ in range(3):
            robot.train_iter()
    assert asked[:4] == [(1, 4), (1, 4), (1, 8), (1, 8)]  # agent 0, with as many steps since its last update, is not waited for
    assert task.rows_learned == 4 + 4 + (10 + 4)  # agent 0's at 10 waits for agent 1, which has taken 2 since its last: till 12


# ------------------------------------------------------------------------------------------------------------- who may ask


class Asking(Echo):
    """Asks a helper from inside of the task, as `where` says."""

    def __init__(self, where, helper):
        super().__init__()
        self.where, self.helper, self.errors = where, helper, []

    def ask(self, where):
        if where == self.where and self.helper() is not None:
            try:
                self.helper().comm.predict(row(self.helper().agent, 1))
            except RuntimeError as error:
                self.errors.append(error)
                raise

    def predict(self, inputs):
        if hasattr(self, "where"):  # else it is the trial of its base class
            self.ask("predict")
        return super().predict(inputs)

    def learn(self, batch):
        self.ask("learn")
        return super().learn(batch)


@pytest.mark.parametrize("driver", ["inline", "cooperative", "threads"])
@pytest.mark.parametrize("where", ["predict", "learn"])
@pytest.mark.parametrize("whose", [0, 1])
def test_a_task_that_asks_a_helper_is_told_so_at_once(driver, where, whose):
    """A asks B while B asks A: once a deadlock under threads."""
    helpers = {}
    tasks = {name: echo_task(Asking(where, partial(helpers.get, other)), on_error="fail_batch")
             for name, other in (("A", "B"), ("B", "A"))}

    def program(agent):
        name = "AB"[agent.index]
        if agent.index == whose:
            helpers.update(agent.helpers)
        comm = agent.helpers[name].comm
        for i in range(3):
            try:
                comm.predict(row(agent, i)) if where == "predict" else comm.learn(update(agent, 2))
            except TaskFailed as error:
                assert f"a helper was asked from inside of task {name!r}" in str(error)
                assert isinstance(error.__cause__, WrongCaller)

    play(driver, program, 2, tasks)
    errors = [error for task in tasks.values() for error in task.algorithm.errors]
    assert errors and all(isinstance(error, WrongCaller) for error in errors)


@each_driver_with_workers
def test_a_task_that_asks_a_helper_of_an_agent_elsewhere_is_told_that_it_is_not_here(driver):
    robots = []
    task = echo_task(Asking("predict", lambda: robots[0].agents[0].helpers["A"] if robots else None))
    with Robot(tasks={"A": task}, agent=OneAsk, driver=driver) as robot:
        robots.append(robot)
        with pytest.raises(TaskFailed, match="task 'A': predict failed .*agent 0: its helpers are in a worker process"):
            robot.run()


class OneAsk(Agent):
    def run(self):
        self.helpers["A"].comm.predict(row(self, 1))


class Threaded(Agent):
    """Learns in a thread of its own, as the document's third way has it."""

    def run_one_episode(self):
        helper = self.helpers["RL"]
        obs, _ = self.env.reset()
        while not self.env.is_over:
            act = helper.predict(obs)
            obs_next, rew, terminated, truncated, _ = self.env.step(act)
            helper.store(obs, act, rew, obs_next, terminated, truncated)
            obs = obs_next
        errors = []

        def elsewhere(call):
            try:
                call()
            except Exception as error:  # noqa: BLE001  whatever it is
                errors.append(error)

        for call in (helper.learn, partial(helper.predict, obs)):
            thread = threading.Thread(target=elsewhere, args=(call,), name="mine")
            thread.start()
            thread.join()
        kinds = [type(error).__name__ for error in errors]
        assert kinds == ["WrongCaller"] * 2 and "from thread 'mine', which is not the agent's" in str(errors[0]), errors
        assert "mode='async'" in str(errors[0]) and "driver='threads'" in str(errors[0])
        assert helper.learn() is not None or not helper.wait  # and the agent itself goes on


@each_driver
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_thread_that_is_not_the_agents_is_told_so_at_once(driver, mode):
    with robot_of(a2c(), lambda: OnPolicyHelper(unroll=50), agent=Threaded, n_agents=2, driver=driver, mode=mode) as robot:
        robot.run(StopAfterSteps(40))
        assert robot.tasks["RL"].learns


@each_local_driver
def test_between_iterations_the_robots_thread_may_ask(driver):
    with robot_of(a2c(), lambda: OnPolicyHelper(unroll=5), n_agents=2, driver=driver) as robot:
        robot.train_iter()
        assert robot.agents[0].helpers["RL"].predict(np.zeros(1, np.float32)) in (0, 1)
        robot.train_iter()

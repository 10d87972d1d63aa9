"""Workers that predict with networks of their own (serve='replica'), and updates that run beside predictions (mode='async')."""

import os
import sys
import threading
from functools import partial
from itertools import count
from time import sleep

import numpy as np
import pytest
import torch
from transport_fakes import Drift, Echo, Learner, Programmed, echo_task, row, update

from parl_like import OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.model import Model
from parl_like.tasks.acting_copies import ActingCopies, tensors_of
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed, TaskFailed

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")]

TWO = Processes(workers=2)


class Weighted(Model):
    def __init__(self, n=3):
        super().__init__(Drift.observation_space, Drift.action_space)
        self.w = torch.nn.Parameter(torch.ones(3))
        self.rest = torch.nn.Parameter(torch.zeros(n))


class Elementwise(Algorithm):
    """Logits are the observation times the parameters: exact in every row, whatever the batch. Every step adds 1 to `rest`."""

    def __init__(self, n=3):
        super().__init__(Weighted(n))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    def predict(self, inputs):
        if (inputs.obs[:, 0] == 99).any():
            raise ArithmeticError("99 is too much")
        return {"logits": inputs.obs * self.model.w, "rest": self.model.rest[:2].expand(len(inputs.obs), -1)}

    def explorer(self):
        return Categorical()

    def learn(self, batch):
        return {"loss": 1e-3 * (batch.obs * self.model.w).sum(-1).mul(batch.rew.float()).mean() - self.model.rest.sum()}


def drifting(helper, driver=TWO, n_agents=5, serve="replica", n=3, mode="sync", trace=True, **options):
    task = ComputationTask(partial(Elementwise, n), helper, serve=serve, **options)
    return Robot(Drift, tasks={"RL": task}, n_agents=n_agents, driver=driver, mode=mode, trace=trace)


def unrolling():
    return OnPolicyHelper(unroll=8)


def replaying():
    return OffPolicyHelper(size=500, batch_size=8, learn_every=4)


def traced(*args, **options):
    with drifting(*args, **options) as robot:
        robot.run(StopAfterSteps(1000))
        return robot.trace_hash(), robot.env_steps, robot.tasks["RL"].learns


class Bare(Algorithm):
    """Has no parameters."""

    def __init__(self):
        super().__init__(Model(Drift.observation_space, Drift.action_space))

    def predict(self, inputs):
        return {"act": torch.zeros(len(inputs.obs), dtype=torch.long)}


def test_a_network_without_parameters_may_be_served_by_replicas():
    with Robot(Drift, tasks={"RL": ComputationTask(Bare, train=False, serve="replica")}, n_agents=2, driver=TWO) as robot:
        robot.run(StopAfterSteps(20))
        assert robot.env_steps >= 20


@pytest.mark.parametrize("helper", [pytest.param(unrolling, marks=pytest.mark.slow), replaying])
def test_replicas_that_get_every_step_act_as_the_centre_does(helper):
    replica = traced(helper)
    assert replica == traced(helper) and replica[2] > 10
    if helper is unrolling:  # agents that share a buffer take turns in another order
        assert replica == traced(helper, serve="central") == traced(helper, driver="cooperative")
    assert replica[0] != traced(helper, sync_every=50)[0]


@pytest.mark.parametrize("helper", [unrolling, replaying])
def test_a_resumed_run_with_replicas_goes_on_as_if_it_had_not_stopped(helper, tmp_path):
    with drifting(helper, sync_every=3) as robot:
        robot.run(StopAfterSteps(700))
        robot.save(tmp_path / "state")
        robot.run(StopAfterSteps(700))
        whole = robot.trace_hash(), robot.counters()
    with drifting(helper, sync_every=3) as robot:
        robot.load(tmp_path / "state")
        robot.run(StopAfterSteps(700))
        assert (robot.trace_hash(), robot.counters()) == whole


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agents_that_only_act_are_heard_stopped_and_counted(mode):
    """They never need the robot, which stops them all the same; two sync runs stop at the same step."""
    def steps():
        with drifting(None, n_agents=4, mode=mode, trace=False) as robot:
            robot.run(StopAfterSteps(500))
            # Episodes restart when a run ends, and an agent that asks again has not been answered then.
            requests = robot.metrics()["RL/predict/requests"]
            assert robot.env_steps <= requests <= robot.env_steps + 8
            assert robot.collect(n_episode=6).lengths == [50] * 6
            robot.checkpoint_boundary()
            return robot.env_steps

    first = steps()
    # 4 agents pause after every 16 predictions each, so the stop is not far.
    assert 500 <= first - 300 and (mode == "async" or first == steps())


@pytest.mark.parametrize("size", [3, 600_000])  # large ones are copied beside the predictions
@pytest.mark.parametrize("serve", ["central", "replica"])
def test_parameters_of_a_prediction_are_of_one_version_which_never_goes_back(serve, size):
    def program(agent):
        helper, last, open_update = agent.helpers["RL"], -1, None
        while last < 20:
            ticket = helper.comm.predict((np.zeros(3, np.float32), 0.5))
            rest = ticket.out["rest"][ticket.start]
            assert rest[0] == rest[1] == ticket.version and ticket.version >= last, (rest, ticket.version, last)
            last = ticket.version
            if open_update is None or helper.comm.is_served(open_update):
                open_update = helper.comm.put_training({"obs": np.zeros((1, 3), np.float32), "rew": np.zeros(1)})
        helper.comm.get(open_update)

    task = ComputationTask(partial(Elementwise, size), serve=serve)
    with Robot(tasks={"RL": task}, agent=partial(Programmed, program), n_agents=4, driver=TWO, mode="async") as robot:
        robot.run()
    assert task.version >= 20 and (task.acting is None)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_parameters_that_come_in_a_pause_neither_end_it_nor_the_run(mode):
    def program(agent):
        comm = agent.helpers["RL"].comm
        for _ in range(500):
            comm.predict((np.zeros(3, np.float32), 0.5))

    task = ComputationTask(Elementwise, serve="replica")
    with Robot(tasks={"RL": task}, agent=partial(Programmed, program), n_agents=2, driver=TWO, mode=mode) as robot:
        driver = robot.pool.driver
        take_in = driver._take_in

        def give(requests=True):
            take_in(requests)
            task.version += 1
            driver.supervisor.publish(driver.publisher.due())

        driver._take_in = give
        robot.run()
        assert robot.metrics()["RL/predict/requests"] == 1000 and task.version > 20


def test_replicas_wait_for_sync_every_steps():
    def program(agent):
        helper = agent.helpers["RL"]
        for i in range(12):
            ticket = helper.comm.predict((np.zeros(3, np.float32), 0.5))
            assert ticket.version == i // 4 * 4, (i, ticket.version)
            helper.comm.learn({"obs": np.zeros((1, 3), np.float32), "rew": np.zeros(1)})

    task = ComputationTask(Elementwise, Learner, serve="replica", sync_every=4)
    with Robot(tasks={"RL": task}, agent=partial(Programmed, program), n_agents=1, driver=Processes(workers=1)) as robot:
        robot.run()
    assert task.version == 12


def test_a_replica_that_fails_fails_its_members_with_the_traceback():
    def program(agent):
        helper = agent.helpers["RL"]
        with pytest.raises(TaskFailed, match=r"predict failed for a batch of 2 requests.*\n[\s\S]*ArithmeticError: 99 is too "
                                             r"much"):
            helper.comm.predict((np.full(3, 99, np.float32), 0.5))
        helper.comm.predict((np.zeros(3, np.float32), 0.5))
        if agent.index == 3:
            raise OSError("enough")

    task = ComputationTask(Elementwise, serve="replica")
    with Robot(tasks={"RL": task}, agent=partial(Programmed, program), n_agents=4,
               driver=TWO) as robot, pytest.raises(AgentFailed, match="OSError: enough"):
        robot.run()


def test_a_worker_with_replicas_is_replaced_and_has_the_parameters():
    with drifting(unrolling, n_agents=4, mode="async", trace=False) as robot:
        killed = []

        class Kill(Hook):
            def post_episode(self, agent, interrupted):
                if not killed and robot.tasks["RL"].version > 5:
                    killed.append(robot.tasks["RL"].version)
                    robot.pool.driver.link.kill(robot.pool.driver.workers[0])

        def later(robot):
            return bool(killed) and robot.pool.driver.restarts == 1 and robot.tasks["RL"].version > killed[0] + 20

        robot.run(StopWhen(later), Kill())
        assert robot.pool.driver.workers[0].incarnation == 1


def test_replicas_are_built_from_a_function():
    with pytest.raises(TypeError, match=r"serve='replica' needs a function that builds the algorithm.*got Elementwise"):
        ComputationTask(Elementwise(), serve="replica")
    with pytest.raises(ValueError, match="serve is 'copy'; expected 'auto' or 'central' or 'replica'"):
        ComputationTask(Elementwise, serve="copy")
    with pytest.raises(ValueError, match="sync_every is 0"):
        ComputationTask(Elementwise, serve="replica", sync_every=0)


# ----------------------------------------------------------------------------------------------------- updates beside predictions


class Copied(Echo):
    """An `Echo` that can be copied, and whose updates wait for a number of predictions."""

    served = 0

    def __init__(self):
        super().__init__()
        del self.alone, self.before, self.during

    def predict(self, inputs):
        Copied.served += len(inputs.obs)
        return {"echo": inputs.obs}


def ask_while_it_learns(agent):
    comm = agent.helpers["echo"].comm
    ticket = comm.put_training(update(agent, 2)) if agent.index == 0 else None
    for i in count():
        comm.predict(row(agent, i))
        if i >= 300 and (ticket is None or comm.is_served(ticket)):
            return


def test_predictions_go_on_while_an_update_is_given():
    held = []

    def during(rows):
        begin = Copied.served
        for _ in range(3000):  # a safety net; else until 100 more requests were served
            if Copied.served >= begin + 100:
                break
            sleep(0.01)
        held.append(Copied.served - begin)

    Copied.served, Copied.during = 0, staticmethod(during)
    task = echo_task(Copied())
    with Robot(tasks={"echo": task}, agent=partial(Programmed, ask_while_it_learns), n_agents=2, driver=TWO,
               mode="async") as robot:
        robot.run()
    assert held[0] >= 100


def test_an_algorithm_that_cannot_be_copied_is_served_between_its_steps(caplog):
    task = echo_task()  # holds a lock, which nobody can copy
    with Robot(tasks={"echo": task}, agent=partial(Programmed, ask_while_it_learns), n_agents=2, driver=TWO,
               mode="async") as robot:
        robot.run()
    assert task.learns == 1 and "cannot be copied" in caplog.text


class Tempered(Elementwise):
    """With a parameter of its own beside those of its model, to which every step adds 1."""

    def __init__(self):
        super().__init__()
        self.heat = torch.nn.Parameter(torch.zeros(()))

    def parameters(self):
        return iter([*self.model.parameters(), self.heat])

    def predict(self, inputs):
        return {**super().predict(inputs), "heat": self.heat.expand(len(inputs.obs))}

    def learn(self, batch):
        return {"loss": super().learn(batch)["loss"] - self.heat}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("serve", "names"), [("central", ()), ("replica", ()), ("replica", ("model", "heat"))])
def test_parameters_of_the_algorithm_itself_follow_too(serve, names, mode, monkeypatch):
    monkeypatch.setattr(Tempered, "acts_with", names)

    def program(agent):
        helper, heat = agent.helpers["RL"], -1.0
        while heat < 5:
            ticket = helper.comm.predict((np.zeros(3, np.float32), 0.5))
            heat = ticket.out["heat"][ticket.start]
            assert heat == ticket.out["rest"][ticket.start][0] == ticket.version
            helper.comm.get(helper.comm.put_training({"obs": np.zeros((1, 3), np.float32), "rew": np.zeros(1)}))

    task = ComputationTask(Tempered, serve=serve)
    with Robot(tasks={"RL": task}, agent=partial(Programmed, program), n_agents=1, driver=TWO, mode=mode) as robot:
        robot.pool.driver.step_limit = 20.0
        robot.run()


def test_acting_copies_share_nothing_with_what_learns():
    learner = Elementwise()
    copies = ActingCopies(learner.clone(), 0)
    first = copies.front
    with torch.no_grad():
        learner.model.w += 1
    assert copies.front.algorithm.model.w.tolist() == [1, 1, 1] and copies.version == 0
    copies.publish(tensors_of({name: network.state_dict() for name, network in learner.networks().items()}), 7, 7)
    assert copies.front is not first and copies.front.algorithm.model.w.tolist() == [2, 2, 2]
    assert (copies.version, copies.front.algorithm.updates, first.version) == (7, 7, 0) and first.algorithm.model.w.tolist() == [
        1,
        1,
        1,
    ]
    with first.lock:  # a prediction that takes long holds up who publishes twice, and nobody else
        twice = threading.Thread(target=copies.publish,
                                 args=(tensors_of({name: n.state_dict() for name, n in learner.networks().items()}), 8, 8))
        twice.start()
        twice.join(0.05)
        assert twice.is_alive() and copies.version == 7
    twice.join(60)
    assert copies.version == 8


# -------------------------------------------------------------------------------------------------------------- the rows' version


def columns(state, name="param_version"):
    """Every column of this name in a nested state."""
    if not isinstance(state, dict):
        return []
    return [value for key, part in state.items() for value in ([part] if key == name else columns(part, name))]


@pytest.mark.parametrize("driver, mode", [(TWO, "sync"), (TWO, "async"), ("cooperative", "async")])
def test_rows_of_workers_say_which_parameters_acted(driver, mode):
    with drifting(replaying, driver, mode=mode, trace=False) as robot:
        robot.run(StopAfterSteps(400))
        robot.checkpoint_boundary()
        versions = columns(robot.state_dict())
        assert len(versions) == (2 if driver is TWO else 0)
        if mode == "async":  # one worker may only begin after updates of the other's rows
            versions = [np.concatenate(versions)] if versions else []
        for column in versions:
            assert column.dtype == np.int64 and column.min() == 0 and 10 < column.max() <= robot.tasks["RL"].version


# --------------------------------------------------------------------------------------- between two iterations, and after faults


@pytest.mark.parametrize("serve", ["central", "replica"])
def test_what_comes_between_two_iterations_comes_at_the_same_moment(serve):
    """Whether the workers are given time or not: they hear of an update when the run goes on."""
    def counts(pause):
        with drifting(unrolling, n_agents=4, serve=serve) as robot:
            for _ in range(3):
                robot.train_iter()
            sleep(pause)
            robot.checkpoint_boundary()
            robot.train_iter()
            robot.checkpoint_boundary()
            return robot.env_steps, robot.metrics()["RL/predict/requests"], robot.trace_hash()

    assert counts(0.0) == counts(0.05)


@pytest.mark.parametrize("serve", ["central", "replica"])
def test_a_collection_after_an_iteration_has_its_own_steps_and_learns_nothing(serve):
    with drifting(unrolling, n_agents=4, serve=serve) as robot:
        robot.train_iter()
        before = robot.env_steps, robot.tasks["RL"].learns
        assert robot.collect(n_step=20).n_steps == 20
        assert (robot.env_steps, robot.tasks["RL"].learns) == (before[0] + 20, before[1])
        robot.train_iter()
        assert robot.tasks["RL"].learns == before[1] + 1


@pytest.mark.parametrize("serve", ["central", "replica"])
def test_min_rows_are_waited_for_in_async_mode(serve):
    sizes = []
    task = ComputationTask(Elementwise, unrolling, serve=serve, training_rule=BatchRule(min_rows=32))
    learn = task.learn
    task.learn = lambda rows: (sizes.append(len(rows["obs"])), learn(rows))[1]
    with Robot(Drift, tasks={"RL": task}, n_agents=8, driver=TWO, mode="async") as robot:
        robot.run(StopWhen(lambda robot: len(sizes) > 10))
    assert all(size >= 32 for size in sizes[:-1]), sizes  # but for what the stop finds


def test_agents_that_wait_for_updates_go_on_together():
    """Updates are slower than the four agents, who each wait for their own; none of them is served alone meanwhile."""
    task = ComputationTask(Elementwise, replaying, serve="replica")
    learn = task.learn
    task.learn = lambda rows: (sleep(0.01), learn(rows))[1]
    with Robot(Drift, tasks={"RL": task}, n_agents=4, driver=Processes(workers=1), mode="async") as robot:
        robot.run(StopAfterSteps(400))
        counters = robot.wrappers["RL"].predictions.counters
        assert task.learns > 20 and counters.batches > 90
        assert 4 * counters.batches - counters.rows < 8  # but for what the stop finds


class Picky(Drift):
    def __init__(self, path):
        for i in range(3):  # a folder is made by one alone, also where two workers come at once
            try:
                os.mkdir(f"{path}{i}")
            except FileExistsError:
                continue
            if i == 1:  # the first is made where the robot is
                raise OSError("no such display")
            break


def test_a_robot_whose_environment_could_not_be_built_may_try_again(tmp_path):
    task = ComputationTask(Elementwise, unrolling)
    with Robot(partial(Picky, str(tmp_path / "made")), tasks={"RL": task}, n_agents=4, driver=TWO) as robot:
        with pytest.raises(AgentFailed, match="building its agents raised OSError: no such display"):
            robot.run(StopAfterSteps(50))
        assert not any(seat.up and not seat.taken for seat in robot.pool.driver.workers)
        robot.run(StopAfterSteps(50))
        assert robot.env_steps >= 50


def test_an_answer_to_a_question_that_was_given_up_is_nobodys(tmp_path):
    with drifting(unrolling) as robot:
        robot.run(StopAfterSteps(50))
        robot.checkpoint_boundary()
        driver = robot.pool.driver
        order = driver.supervisor.order

        def struck(what, *rest, **notes):
            order(what, *rest, **notes)
            if what == "trace":
                driver.supervisor.order = order
                raise KeyboardInterrupt

        driver.supervisor.order = struck
        with pytest.raises(KeyboardInterrupt):
            robot.trace_hash()
        robot.save(tmp_path / "state")
        robot.load(tmp_path / "state")


def test_a_worker_that_has_ended_may_be_killed_and_closed():
    with drifting(None, n_agents=2) as robot:
        robot.run(StopAfterSteps(20))
        driver = robot.pool.driver
        driver.link.kill(driver.workers[0])
        driver.link.kill(driver.workers[0])

"""How workers get their predictions where nobody said so: which tasks have replicas, what a run then does as before, and how half
of a worker's agents act while the robot predicts for the others."""

import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from shuffled_link import Shuffled
from transport_fakes import echo_task, play, row

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, PPO, SAC
from parl_like.drivers.workers import worker_agents
from parl_like.drivers.workers.processes import Processes
from parl_like.drivers.workers.replica_rule import choose_serving
from parl_like.drivers.workers.worker import Worker
from parl_like.environment.hooks import EveryNSteps, Hook
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterIterations, StopAfterSteps, StopWhen
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ
from parl_like.tasks.batch_rule import BatchRule

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")]

TWO = Processes(workers=2)
SPACES = {"obs": gym.spaces.Box(-1, 1, (4,), np.float32), "act": gym.spaces.Discrete(2)}
AMOUNTS = {"obs": SPACES["obs"], "act": gym.spaces.Box(-1, 1, (2,), np.float32)}


def policy(**options):
    return create_algorithm_func(MLPActorCritic, {**SPACES, **options}, PPO, {"epochs": 1})


class Own(PPO):
    def predict(self, inputs):
        return super().predict(inputs)


def locked():
    lock = threading.Lock()
    make = policy()

    def build():
        with lock:
            return make()

    return build


@pytest.mark.parametrize(("task", "serve", "why"), [
    (lambda: ComputationTask(policy()), "replica", "one small compiled network"),
    (lambda: ComputationTask(create_algorithm_func(MLPQ, SPACES, DQN, {})), "replica", "one small compiled network"),
    (lambda: ComputationTask(policy()()), "central", "given an algorithm"),
    (lambda: ComputationTask(policy(), native=False), "central", "no single compiled network"),
    (lambda: ComputationTask(create_algorithm_func(MLPActorCritic, SPACES, Own, {})), "central", "no single compiled network"),
    (lambda: ComputationTask(policy(), predict_rule=BatchRule(max_rows=4)), "central", "predict_rule"),
    (lambda: ComputationTask(create_algorithm_func(MLPActorQ, {**AMOUNTS, "hidden": [512, 512]}, SAC, {})), "central", "above"),
    (lambda: ComputationTask(locked()), "central", "cannot be sent to workers"),
])
def test_small_compiled_networks_have_replicas(task, serve, why):
    task = task()
    found, said = choose_serving(task)
    assert found == serve and why in said
    assert task.serve == "auto"


def carts(serve="auto", driver=TWO, n_agents=4, helper=None, mode="sync"):
    func = create_algorithm_func(MLPActorCritic, dict(obs=gym.make("CartPole-v1").observation_space, act=gym.spaces.Discrete(2),
                                                      hidden=[16, 16]), PPO, dict(epochs=1))
    task = ComputationTask(func, helper or (lambda: OnPolicyHelper(unroll=40)), serve=serve)
    return Robot("CartPole-v1", tasks={"RL": task}, n_agents=n_agents, driver=driver, seed=0, trace=True, mode=mode)


def test_the_choice_is_the_runs_to_say_and_the_users_to_turn():
    with carts() as robot:
        assert robot.tasks["RL"].serve == "replica"
        assert robot.notes == ["task 'RL': workers predict by replicas, for its predictions are one small compiled network"]
        task = robot.tasks["RL"]
    with Robot("CartPole-v1", tasks={"RL": task}, n_agents=1) as robot:
        assert robot.notes == []
    with carts("central") as robot:
        assert (robot.tasks["RL"].serve, robot.notes) == ("central", [])


STOPS = {
    "steps": lambda: StopAfterSteps(90), "more steps": lambda: StopAfterSteps(333), "episodes": lambda: StopAfterEpisodes(3),
    "iterations": lambda: StopAfterIterations(2), "either": lambda: StopAfterSteps(500) | StopAfterEpisodes(5),
    "anything": lambda: StopWhen(lambda robot: robot.env_steps > 210),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_by_chosen_replicas_ends_where_a_central_one_does(stop):
    """Also what it counted, in what order: the last return is that of the episode that ended last."""
    def run(**options):
        with carts(**options) as robot:
            robot.run(STOPS[stop]())
            first = robot.env_steps, robot.episodes, list(robot.recent_returns)
            robot.run(37)
            return first, robot.env_steps, robot.episodes, list(robot.recent_returns), robot.trace_hash()

    assert run() == run(serve="central")


def test_hooks_hear_of_every_turn():
    def heard(serve):
        steps, ends = [], []

        class Ends(Hook):
            def post_episode(self, agent, interrupted):
                ends.append((agent.index, agent.env.episode_return))

        with carts(serve) as robot:
            robot.run(200, [EveryNSteps(10, lambda robot: steps.append(robot.env_steps)), Ends()])
        return steps, ends

    assert heard("auto") == heard("central")


def test_a_resumed_run_by_chosen_replicas_goes_on_as_if_it_had_not_stopped(tmp_path):
    with carts() as robot:
        robot.run(200)
        robot.save(tmp_path / "state")
        robot.run(300)
        whole = robot.trace_hash(), robot.counters()
    with carts() as robot:
        robot.load(tmp_path / "state")
        robot.run(300)
        assert (robot.trace_hash(), robot.counters()) == whole


def test_updates_of_single_steps_reach_chosen_replicas_and_two_runs_are_the_same():
    def run():
        task = ComputationTask(create_algorithm_func(MLPQ, dict(
            obs=gym.make("CartPole-v1").observation_space, act=gym.spaces.Discrete(2), hidden=[16, 16]), DQN, {}),
            lambda: OffPolicyHelper(size=500, batch_size=8, learn_every=1))
        with Robot("CartPole-v1", tasks={"RL": task}, n_agents=4, driver=TWO, seed=0, trace=True) as robot:
            robot.run(200)
            return robot.trace_hash(), robot.tasks["RL"].learns

    one = run()
    assert one == run() and one[1] > 40


EVENTS: list[tuple[str, int]] = []


def ask(agent):
    for i in range(3):
        EVENTS.append(("acts", agent.index))
        ticket = agent.helpers["echo"].comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == row(agent, i)[0].tolist()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_half_of_a_workers_agents_are_sent_for_while_the_others_act(mode, monkeypatch):
    """In async mode; in sync mode all are one batch, whose numbers the runs of other drivers repeat."""
    monkeypatch.setattr(worker_agents, "HALVES_S", 0.0)
    send = Worker.send

    def sent(worker, kind, **parts):
        if parts.get("rows"):
            EVENTS.append(("sent", parts["rows"]))
        send(worker, kind, **parts)

    monkeypatch.setattr(Worker, "send", sent)
    EVENTS.clear()
    play(Shuffled(workers=1, seed=1), ask, n_agents=4, tasks={"echo": echo_task()}, mode=mode)
    acts = [("acts", i) for i in range(4)]
    if mode == "sync":
        assert [*acts, ("sent", 4)] == EVENTS[:5] and len(EVENTS) == 15
    else:
        assert [*acts[:2], ("sent", 2), *acts[2:], ("sent", 2)] == EVENTS[:6]
        assert {rows for what, rows in EVENTS if what == "sent"} == {2} and len(EVENTS) == 18


def test_agents_of_environments_that_take_no_time_are_one_batch(monkeypatch):
    monkeypatch.setattr(worker_agents, "HALVES_S", 1e9)
    EVENTS.clear()
    send = Worker.send
    monkeypatch.setattr(Worker, "send", lambda worker, kind, **parts: (
        EVENTS.append(("sent", parts["rows"])) if parts.get("rows") else None, send(worker, kind, **parts)))
    play(Shuffled(workers=1, seed=1), ask, n_agents=4, tasks={"echo": echo_task()}, mode="async")
    assert EVENTS[4] == ("sent", 4)


@pytest.mark.parametrize("serve", ["auto", "replica"])
def test_an_iteration_ends_with_an_update_however_long_an_unroll_is(serve):
    with carts(serve) as robot:
        for n in (1, 2):
            assert "RL/loss" in robot.train_iter()
            assert (robot.env_steps, robot.tasks["RL"].learns) == (160 * n, n)


@pytest.mark.parametrize("seed", range(3))
def test_an_async_run_by_chosen_replicas_ends_soon_after_its_last_step(seed):
    with carts(driver=Shuffled(workers=2, seed=seed), mode="async") as robot:
        robot.run(100)
        assert 100 <= robot.env_steps <= 108


class Turned(Hook):
    """The second episode's end, or each 100th step, turns the signs of all parameters."""

    def __init__(self, robot):
        self.robot, self.n = robot, 0

    def turn(self, robot):
        with torch.no_grad():
            for one in robot.tasks["RL"].algorithm.model.parameters():
                one.mul_(-1.0)

    def post_episode(self, agent, interrupted):
        self.n += 1
        if self.n == 2:
            self.turn(self.robot)


@pytest.mark.parametrize("when", ["episode", "steps"])
def test_parameters_that_a_hook_changes_are_those_of_the_next_action(when):
    def run(serve):
        with carts(serve, helper=lambda: OnPolicyHelper(unroll=400)) as robot:
            hook = Turned(robot)
            robot.run(300, [hook if when == "episode" else EveryNSteps(100, hook.turn)])
            return robot.trace_hash(), robot.env_steps

    assert run("auto") == run("central")

"""Schedules end with the run: with the first one of a robot that was given no `total_steps`, wherever they are."""

import copy
import logging
import pickle
import re
import subprocess
import sys

import cloudpickle
import pytest

from parl_like import Robot
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps, StopAtReturn
from parl_like.learning.schedule import Linear
from parl_like.learning.span import Span, move_ends

QUICK = {"n_agents": 2, "hidden": [8], "seed": 3}
DQN = {**QUICK, "warmup": 64, "batch_size": 16}
PPO = {**QUICK, "unroll": 16, "lr": {"start": 1e-3, "end": 0.0}, "entropy": {"start": 0.1, "end": 0.0, "share": 0.5}}


def dqn(**options):
    return Robot.of("DQN", "CartPole-v1", **DQN, **options)


def epsilon(robot):
    return robot.tasks["RL"].algorithm.epsilon


def over(robot, steps):
    """ε of `values_of` over a fifth of the acts of one of two agents."""
    return epsilon(robot) == Linear(1.0, 0.05, steps // 2 // 5)


@pytest.fixture
def said(caplog):
    """The warnings about spans, so far."""
    with caplog.at_level(logging.WARNING, "parl_like.learning.span"):
        yield lambda: [one.getMessage() for one in caplog.records if one.name == "parl_like.learning.span"]


def loop(robot, steps):
    for _ in robot.iterate(steps):
        pass


@pytest.mark.parametrize("run", [
    lambda robot, n: robot.run(n), lambda robot, n: robot.run(StopAfterSteps(n)), loop,
    lambda robot, n: robot.run(StopAfterSteps(n) | StopAtReturn(1000.0)),
    lambda robot, n: robot.run((StopAfterSteps(2 * n) | StopAfterSteps(n)) & StopAfterSteps(n // 2)),
    lambda robot, n: list(robot.epochs(2, n // 2, evaluate_episodes=1)),
], ids=["run", "condition", "iterate", "or", "and", "epochs"])
def test_the_first_run_sets_what_schedules_span(run, said):
    with dqn() as robot:
        assert over(robot, 50_000)
        run(robot, 300)
        assert over(robot, 300) and robot.agents[0].helpers["RL"].explorer.epsilon == Linear(1.0, 0.05, 30)
        robot.run(250)
        assert over(robot, 300) and not said()


@pytest.mark.parametrize(("driver", "algorithm", "env", "options"), [
    ("cooperative", "DQN", "CartPole-v1", DQN), ("cooperative", "Rainbow", "CartPole-v1", DQN),
    ("cooperative", "PPO", "CartPole-v1", PPO),
    ("cooperative", "TD3", "Pendulum-v1", {**DQN, "noise": {"start": 0.5, "end": 0.0}}),
    pytest.param("processes", "Rainbow", "CartPole-v1", {**DQN, "epsilon": {"start": 1.0, "end": 0.0}}, marks=pytest.mark.slow),
    ("processes", "PPO", "CartPole-v1", {**PPO, "serve": "replica"}),
])
def test_a_run_is_the_same_as_with_its_length_given(driver, algorithm, env, options):
    traces = []
    for given in ({}, {"total_steps": 320}):
        with Robot.of(algorithm, env, driver=driver, trace=True, **options, **given) as robot:
            robot.run(320)
            traces.append(robot.trace_hash())
    assert traces[0] == traces[1]


def acted_before(robot, path):
    robot.collect(n_step=20)


def saved_before(robot, path):
    robot.save(path)


@pytest.mark.parametrize("before", [acted_before, saved_before])
@pytest.mark.parametrize("driver", ["cooperative", "processes"])
def test_agents_that_are_there_already_hear_of_it(driver, before, tmp_path):
    """Workers were started, and the schedule of β sent, before the run."""
    traces = []
    for given in ({}, {"total_steps": 320}):
        with Robot.of("Rainbow", "CartPole-v1", driver=driver, trace=True, **DQN, **given) as robot:
            before(robot, tmp_path / f"{driver}{bool(given)}")
            robot.run(320 - robot.env_steps)
            traces.append(robot.trace_hash())
    assert traces[0] == traces[1]


def test_threads_have_it_too():
    with dqn(driver="threads") as robot:
        robot.run(300)
        assert over(robot, 300) and robot.agents[1].helpers["RL"].explorer.epsilon.steps == 30


@pytest.mark.parametrize("first", [lambda robot: robot.run(StopAfterEpisodes(1)), lambda robot: robot.collect(n_step=10),
                                   lambda robot: robot.train_iter(), lambda robot: loop(robot, 0)])
def test_what_has_no_known_end_sets_nothing(first):
    with dqn() as robot:
        first(robot)
        assert over(robot, 50_000)
        before = robot.env_steps
        robot.run(1000)
        assert over(robot, before + 1000)


@pytest.mark.parametrize(("given", "runs", "texts"), [
    ({}, [100, 100], []),
    ({}, [100, 101], ["span 100 env steps, as the first run had; this run ends at 201, more than twice.*total_steps=201"]),
    ({}, [40] * 5, ["span 40 env steps, as the first run had; this run ends at 12[0-9], more than twice"]),
    ({"total_steps": 100}, [200], []), ({"total_steps": 100}, [50], []),
    ({"total_steps": 100}, [202], [r"\(DQN.epsilon\) span 100 env steps; this run ends at 202, more than twice"]),
    ({"total_steps": 100}, [48, 300], ["span 100 env steps; this run ends at 48, less than half of them"]),
    ({"epsilon": 0.1}, [100, 400], []),
])
def test_a_run_of_another_length_is_told_once(given, runs, texts, said):
    with dqn(**given) as robot:
        for n in runs:
            robot.run(n)
    assert len(said()) == len(texts)
    for one, text in zip(said(), texts, strict=True):
        assert re.search(text, one), one


def test_a_run_without_an_end_is_told_where_nobody_gave_a_number(said):
    with dqn() as robot:
        robot.run(StopAfterEpisodes(1))
    with dqn(total_steps=1000) as robot:
        robot.run(StopAfterEpisodes(1))
    assert len(said()) == 1
    assert "span 50,000 env steps, for nobody said how many there will be, and this run does not say it, either" in said()[0]


def test_parts_of_a_given_run_are_no_fault(said):
    """As a run directory trains from checkpoint to checkpoint."""
    with dqn(total_steps=1000) as robot:
        for stop in (100, 300, 900):
            loop(robot, stop)
        assert not said()
        loop(robot, 2100)
        assert len(said()) == 1


def test_it_is_saved_and_loaded(tmp_path, said):
    with dqn() as robot:
        robot.run(300)
        robot.save(tmp_path / "one")
    with dqn() as robot:
        robot.load(tmp_path / "one")
        assert over(robot, 300)
        robot.run(200)
        assert over(robot, 300) and not said()
        robot.run(200)
        assert "this run ends at 70" in said()[0]
    with dqn(total_steps=1000) as robot:  # what is given counts
        robot.load(tmp_path / "one")
        assert over(robot, 1000)


def test_a_robot_that_was_saved_before_its_first_run_has_it_still_to_come(tmp_path):
    with dqn() as robot:
        robot.save(tmp_path / "one")
    with dqn() as robot:
        robot.load(tmp_path / "one")
        robot.run(300)
        assert over(robot, 300)


@pytest.mark.parametrize("saved", [{}, {"steps": None, "settled": True}, {"steps": 0, "settled": True},
                                   {"steps": 10.5, "settled": True}, {"steps": 10, "settled": 1}])
def test_a_saved_span_that_is_none_is_refused(saved):
    with dqn() as robot:
        robot.run(64)
        robot.checkpoint_boundary()
        state = robot.state_dict()
        state["counters"]["span"] = saved
        with pytest.raises(ValueError, match="Robot: the saved span is .*; expected steps, a whole number"):
            robot.load_state_dict(state)


def test_copies_and_pickles_of_a_schedule_follow_the_span():
    span = Span(100)
    line = span.linear(1.0, 0.0, lambda steps: steps / 4)
    others = [line, copy.deepcopy(line), pickle.loads(pickle.dumps(line)), cloudpickle.loads(cloudpickle.dumps(line))]
    assert [one(5) for one in others] == [0.8] * 4
    move_ends(span._key, [10])
    assert [one(5) for one in others] == [0.5] * 4
    assert [one == Linear(1.0, 0.0, 10) for one in others] == [True] * 4 and line != Linear(1.0, 0.0, 25)


def test_a_schedule_in_another_process_moves_when_it_is_told():
    span = Span(100)
    line = span.linear(1.0, 0.0, lambda steps: steps / 4, name="DQN.epsilon")
    code = ("import pickle, sys; from parl_like.learning.span import move_ends\n"
            "lines, key = pickle.load(sys.stdin.buffer); before = lines[0](5); move_ends(key, [10]); move_ends('other', [3])\n"
            "print(before, *(one(5) for one in lines), *(one(5) for one in pickle.loads(pickle.dumps(lines))))")
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(([line, copy.copy(line)], span._key)),
                         capture_output=True, check=True)
    assert out.stdout.split() == [b"0.8"] + [b"0.5"] * 4


def test_schedules_of_a_robot_made_by_hand_may_end_with_its_run():
    from parl_like import ComputationTask, OffPolicyHelper, create_algorithm_func
    from parl_like.algorithms import DQN as Learner
    from parl_like.models import MLPQ
    from parl_like.robots.spaces import spaces_of

    span = Span(10_000, given=False)
    options = {"epsilon": span.linear(1.0, 0.1, lambda steps: steps / 2), "lr": Linear(1e-3, 0.0, 70)}
    func = create_algorithm_func(MLPQ, spaces_of("CartPole-v1"), Learner, options)
    task = ComputationTask(func, lambda: OffPolicyHelper(warmup=64))
    with Robot("CartPole-v1", tasks={"RL": task}, n_agents=2) as robot:
        robot.span = span
        robot.run(100)
        assert epsilon(robot) == Linear(1.0, 0.1, 50) and task.algorithm.lr == Linear(1e-3, 0.0, 70)

"""Runs of the command line whose agents are in Ray actors: evaluations while they train, and SIGTERM."""

import json
import os
import signal
import sys
from itertools import count

import pytest

from parl_like import Robot
from parl_like.environment.stop_conditions import StopWhen
from parl_like.lab.cli import main
from parl_like.lab.runs.metrics import evaluations
from parl_like.lab.runs.rundir import RunDir

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800),
              pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")]

ARGS = ["train", "ppo-cartpole", "n_agents=4", "unroll=32", "total_steps=1536", "checkpoint_every=512", "trace=true",
        "tensorboard=false", "eval_episodes=2", "workers.count=2", "workers.step_limit=1800"]


def result(run):
    return json.loads((run / "result.json").read_text())


def told(run):
    """What a run has done and found."""
    return result(run)["trace_hash"], result(run)["evaluation"], evaluations(RunDir(run))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of the run that nothing interrupts; its agents are in worker processes."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert main([*ARGS, "driver=processes", "eval_every=700", f"run_dir={run}"]) == 0
    return told(run)


def test_evaluations_while_training_over_ray_change_nothing_of_it(whole, tmp_path):
    assert [step for step, _ in whole[2]] == [0, 768, 1408, 1536]
    for name, every in (("with", 700), ("without", 0)):
        assert main([*ARGS, "driver=ray", f"eval_every={every}", f"run_dir={tmp_path / name}"]) == 0
    assert told(tmp_path / "with") == whole
    assert told(tmp_path / "without")[:2] == whole[:2]


@pytest.mark.parametrize("number", [1, 3])  # in the middle; at the end
def test_sigterm_ends_an_evaluation_over_ray_and_the_run_goes_on_exactly(number, whole, tmp_path, monkeypatch):
    evaluate, begun, run = Robot.evaluate, count(), tmp_path / "cut"

    def struck(self, *, stop, **options):
        strike, asked = next(begun) == number, count()

        def stops(pool):
            if strike and next(asked) == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return stop(pool)

        return evaluate(self, stop=StopWhen(stops), **options)

    with monkeypatch.context() as patched:
        patched.setattr(Robot, "evaluate", struck)
        assert main([*ARGS, "driver=ray", "eval_every=700", f"run_dir={run}"]) == 3
    assert RunDir(run).info().exit_reason == "SIGTERM" and not ray.is_initialized()
    assert [step for step, _ in evaluations(RunDir(run))] == [0, 768, 1408, 1536][:number]
    if number == 3:
        assert (result(run)["stopped_by"], result(run)["evaluation"]["episodes"]) == ("SIGTERM", 0)
    assert main(["resume", str(run), "--exact"]) == 0
    assert told(run) == whole

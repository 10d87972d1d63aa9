"""Evaluations while a run trains: when they come, what they leave, the best, the end at a score, and going on exactly."""

import itertools
import signal
from pathlib import Path

import numpy as np
import pytest
from lab_fakes import FakeRobot, signal_here
from test_runner import clean, events, resume, rows, state, train  # noqa: F401  `clean` is a fixture

from parl_like.lab import runner, session
from parl_like.lab.commands.many_runs import run_row
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.evaluations import Evaluations
from parl_like.lab.reports import plots
from parl_like.lab.runs.checkpoint import Checkpoints, verify
from parl_like.lab.runs.metrics import evaluations
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import UsageError

SCORE = "eval/score"


def scored(monkeypatch, scores):
    """Evaluations have the scores that are given for their steps."""
    evaluate = FakeRobot.evaluate

    def given(self, **options):
        seen = evaluate(self, **options)
        if seen.score is not None:
            seen.score = float(scores[self.env_steps])
        return seen

    monkeypatch.setattr(FakeRobot, "evaluate", given)


def best(run):
    meta = Checkpoints(run.checkpoints).load("best").meta
    return meta.step, meta.score


def test_they_come_at_every_multiple_and_leave_the_training_alone():
    _, without, _ = train("without")
    code, run, screen = train("run", eval_every=75)
    assert code == 0
    found = [row for row in rows(run) if row[SCORE]]
    assert [row["step"] for row in found] == ["0", "76", "150", "226", "300", "376", "400"]
    assert {row["eval/episodes"] for row in found} == {"5"}
    assert {row["eval/regret"] for row in found} == {"0.25"}, "what a robot's own evaluation says, too"
    # Five seeds from 1,000,000 on, which is 1 modulo 7: the weight and 1, 2, 3, 4, 5 of each episode.
    assert float(found[-1][SCORE]) == pytest.approx(state(run).weight + 3) == run.result()["evaluation"]["score"]
    training = [{key: cell for key, cell in row.items() if not key.startswith("eval/")} for row in rows(run) if not row[SCORE]]
    assert training == rows(without)
    assert run.result()["trace_hash"] == without.result()["trace_hash"]
    assert vars(state(run)) | {"config": 0} == vars(state(without)) | {"config": 0}
    assert [event["step"] for event in events(run, "evaluated")] == [0, 76, 150, 226, 300, 376, 400]
    assert "\nevaluation at env step 400: score " in screen and "without" not in screen
    assert "eval/score" not in rows(without)[0] and "best" not in without.result()


def test_the_best_is_kept_beside_the_last(monkeypatch):
    scored(monkeypatch, {0: 1, 100: 5, 200: 3, 300: 5, 400: 2})
    _, run, screen = train(eval_every=100, keep_checkpoints=1)
    assert best(run) == (100, 5.0), "the first of equal ones"
    assert run.result()["best"] == {"step": 400, "score": 2, "best_step": 100, "best": 5}
    assert runner.evaluate("run")["step"] == 400 and runner.evaluate("run", which="best")["step"] == 100
    assert screen.count("the best so far") == 2 and "evaluation at env step 100: score 5, the best so far" in screen
    assert [name for name, good, _ in verify(run.checkpoints) if good] == ["000000400", "best"]
    row = run_row(run)
    assert (row["score"], row["best"], row["best_step"]) == (2, 5, 100)
    with pytest.raises(UsageError, match="has what acts, but neither buffers nor agents to go on with; resume from newest"):
        resume(overrides={"total_steps": 800}, which="best")


def test_a_score_that_is_no_number_is_never_the_best(monkeypatch):
    scored(monkeypatch, {0: "nan", 100: 1, 200: "nan", 300: "-inf", 400: 0})
    _, run, _ = train(eval_every=100)
    assert best(run) == (100, 1.0) and run.state() == "finished"
    assert [step for step, _ in evaluations(run)] == [0, 100, 200, 300, 400]


def test_a_best_that_the_disk_refuses_is_warned_of(monkeypatch):
    monkeypatch.setattr(Checkpoints, "save_best", lambda self, *_: self.warn("no room"))
    code, run, screen = train(eval_every=100)
    assert code == 0 and "warning: no room" in screen


def test_list_shows_the_evaluations_of_a_run_that_goes_on(monkeypatch):
    shown = []
    scored(monkeypatch, {0: 7, 100: 5, 200: 9, 300: 1, 400: 1})
    monkeypatch.setattr(FakeRobot, "at_step", {step: lambda: shown.append(run_row(RunDir(Path("run")))) for step in (150, 250)})
    train(eval_every=100)
    assert [(row["score"], row["best"], row["best_step"]) for row in shown] == [(5, 7, 0), (9, 9, 200)]


# ---- the end at a score


def test_training_ends_at_the_first_evaluation_that_reaches_the_score(monkeypatch):
    scored(monkeypatch, {0: 1, 60: 2, 120: 4, 180: 3, 240: 5, 300: 6, 360: 7, 400: 7})
    _, whole, _ = train("whole", eval_every=60)
    code, run, screen = train(eval_every=60, stop_score=4)
    assert (code, run.state(), run.result()["env_steps"]) == (0, "finished", 120)
    assert evaluations(run) == [(0, 1), (60, 2), (120, 4)] and run.result()["evaluation"]["score"] == 4
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 100, 120]
    assert "after 120 of the experiment's 400 steps; at their end it expects" in screen
    assert "evaluation at env step 120: score 4, the best so far; stop_score=4 is reached\n" in screen
    assert screen.count("is reached") == 1
    with pytest.raises(UsageError, match="has finished: an evaluation reached stop_score=4; to train longer: `parl-like resume "
                                         "run stop_score=...` with a higher one, or null"):
        resume()
    code, run, _ = resume(overrides={"stop_score": None}, which="exact")
    assert code == 0 and rows(run) == rows(whole) and run.result()["trace_hash"] == whole.result()["trace_hash"]


@pytest.mark.parametrize("at", [0, 100])
def test_the_score_may_be_reached_at_once_or_at_a_checkpoint(monkeypatch, at):
    scored(monkeypatch, {0: 1, 100: 2, 200: 3})
    code, run, _ = train(eval_every=100, stop_score=1 if at == 0 else 2)
    assert (code, state(run).env_steps, state(run).boundaries) == (0, at, 1 + at // 100)


# ---- going on


def same(a, b):
    assert rows(a) == rows(b) and best(a) == best(b)
    assert {**a.result(), "seconds": 0, "steps_per_s": 0} == {**b.result(), "seconds": 0, "steps_per_s": 0}


@pytest.mark.parametrize(("every", "at"), [(50, 135), (75, 100), (75, 151), (100, 1), (100, 399)])
def test_a_run_that_a_signal_stops_goes_on_with_the_same_evaluations(monkeypatch, every, at):
    _, whole, _ = train("whole", eval_every=every)
    monkeypatch.setattr(FakeRobot, "at_step", {at: signal_here(signal.SIGTERM)})
    assert train(eval_every=every)[0] == 3
    monkeypatch.setattr(FakeRobot, "at_step", {})
    code, run, _ = resume(which="exact")
    assert code == 0
    same(whole, run)


@pytest.mark.parametrize(("number", "after"), [(0, 0), (0, 2), (2, 0), (3, 2), (6, 2)])
def test_a_signal_ends_an_evaluation_at_its_next_step(monkeypatch, number, after):
    """Evaluations 0 to 5 come while it trains, at 0, 76, 150, 226, 300, 376; number 6 at its end."""
    _, whole, _ = train("whole", eval_every=75)
    evaluate, begun = FakeRobot.evaluate, itertools.count()

    def interrupted(self, *, stop, **options):
        strike, asked = next(begun) == number, itertools.count()

        def strikes(robot):
            if strike and next(asked) == after:
                signal_here(signal.SIGTERM)()
            return stop(robot)

        return evaluate(self, stop=strikes, **options)

    with monkeypatch.context() as struck:
        struck.setattr(FakeRobot, "evaluate", interrupted)
        code, run, _ = train(eval_every=75)
    assert (code, run.state()) == (3, "stopped")
    assert [step for step, _ in evaluations(run)] == [0, 76, 150, 226, 300, 376][:number], "what was cut leaves nothing"
    code, run, _ = resume(which="exact")
    assert code == 0
    same(whole, run)


def test_a_run_that_died_between_a_checkpoint_and_its_evaluation_does_it_at_once(monkeypatch):
    _, whole, _ = train("whole", eval_every=100)
    note, noted = session.Session._note_evaluation, itertools.count()

    def power_cut(self, *args):
        if next(noted) == 2:
            raise SystemExit
        note(self, *args)

    with monkeypatch.context() as broken:
        broken.setattr(session.Session, "_note_evaluation", power_cut)
        broken.setattr(session.Session, "_failed", lambda self, error: 1)  # nothing is written any more
        with pytest.raises(SystemExit):
            train(eval_every=100)
    code, run, _ = resume()
    assert code == 0 and [event["step"] for event in events(run, "evaluated")] == [0, 100, 200, 300, 400]
    same(whole, run)


def test_evaluations_may_begin_when_a_run_goes_on():
    train()
    code, run, _ = resume(overrides={"total_steps": 800, "eval_every": 200})
    assert code == 0 and [step for step, _ in evaluations(run)] == [400, 600, 800]


def test_when_one_is_due_and_which_is_the_best():
    config = ExperimentConfig(run_dir="", total_steps=1, n_agents=1, eval_every=100, stop_score=3)
    none = Evaluations(config)
    assert none.due(0) and none.missing(0) and not none.reached()
    assert (none.summary(), none.shown()) == ({}, {})
    some = Evaluations(config, [(0, 1.0), (120, 3.0), (200, 3.0)])
    assert some.reached() and some.best() == (120, 3.0)
    assert [step for step in (200, 250, 299, 300, 470) if some.due(step)] == [300, 470]
    assert not some.missing(200) and some.missing(201)
    some.add(300, float("nan"))
    assert not some.reached() and some.best() == (120, 3.0)
    assert some.summary()["step"] == 300 and some.shown()["evaluation/best at step"] == 120
    never = Evaluations(ExperimentConfig(run_dir="", total_steps=1, n_agents=1))
    assert not never.due(0) and not never.missing(0) and not never.reached()


# ---- the picture


def test_the_learning_curve_shows_them(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    scored(monkeypatch, {0: 1, 100: 2, 200: 3, 300: 4, 400: 5})
    runs = [train(f"run{seed}", eval_every=100, seed=seed)[1] for seed in (1, 2)]
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: False)
    drawn = {}

    def noted(axes, colour, name, curves, **style):
        drawn[name] = [(steps.tolist(), values.tolist()) for _, steps, values in curves], style

    monkeypatch.setattr(plots, "_draw", noted)
    plots.learning_curve(runs, tmp_path / "both.svg")
    evaluated, style = drawn["fake, evaluated"]
    assert [steps for steps, _ in evaluated] == [[0, 100, 200, 300, 400]] * 2 and style["linestyle"] == ":"
    weights = [state(runs[0], step).weight for step in (100, 200, 300, 400)]
    np.testing.assert_allclose(evaluated[0][1][1:], np.array(weights) + np.mean([(1_000_001 + i) % 7 for i in range(5)]))

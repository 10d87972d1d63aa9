"""Evaluations in a process of their own: the numbers of those in the run's process, training as without them, and no harm from a
process that dies."""

import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

from parl_like.lab import evaluation_process
from parl_like.lab.cli import main
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.metrics import evaluations, read_metrics
from parl_like.lab.runs.rundir import RunDir

WORDS = ["qlearning-frozenlake", "total_steps=4096", "eval_every=2000", "eval_episodes=20", "metrics_every=500",
         "checkpoint_every=1500", "trace=true", "tensorboard=false", "seed=3"]


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(name, *words):
    code = main(["train", *WORDS, f"run_dir={name}", *words])
    return code, RunDir.open(name)


def cells(run):
    """Column → cells as text but those of the clock; NaN is one text."""
    return {key: list(map(str, column)) for key, column in read_metrics(run).items() if not key.endswith("_s")}


def test_it_leaves_what_an_evaluation_in_the_run_leaves():
    (code, here), (other, beside) = train("here"), train("beside", "eval_process=true")
    assert code == other == 0
    assert cells(here) == cells(beside), "rows in the order of their steps, as if they had come at once"
    assert [step // 2000 for step, _ in evaluations(beside)] == [0, 1, 2]
    a, b = here.result(), beside.result()
    assert a["trace_hash"] == b["trace_hash"] and a["best"] == b["best"] and a["evaluation"] == b["evaluation"]
    best = [Checkpoints(run.checkpoints).load("best") for run in (here, beside)]
    assert best[0].meta.step == best[1].meta.step and best[0].meta.score == best[1].meta.score
    assert not list((beside.path / evaluation_process.FOLDER).iterdir())


@pytest.mark.slow
def test_a_process_that_dies_is_said_and_stops_nothing(monkeypatch, caplog):
    start = evaluation_process.EvaluationProcess._start

    def killed(self, step):
        start(self, step)
        if 2000 <= step < 4000:
            os.kill(self._child.pid, signal.SIGKILL)

    monkeypatch.setattr(evaluation_process.EvaluationProcess, "_start", killed)
    code, run = train("run", "eval_process=true")
    assert code == 0 and run.state() == "finished"
    assert [step // 2000 for step, _ in evaluations(run)] == [0, 2]
    assert "failed in its process (its process ended with -9); training goes on" in caplog.text


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_with_the_evaluation_that_was_under_way(monkeypatch):
    whole = train("whole", "eval_process=true")[1]
    begin = evaluation_process.EvaluationProcess.begin

    def stopped(self, step, state, row):
        begin(self, step, state, row)
        if 2000 <= step < 4000:
            os.kill(self._child.pid, signal.SIGSTOP)  # it never ends
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(evaluation_process.EvaluationProcess, "begin", stopped)
    code, run = train("run", "eval_process=true")
    assert code == 3 and len(evaluations(run)) == 1 and len(list((run.path / evaluation_process.FOLDER).iterdir())) == 1
    monkeypatch.setattr(evaluation_process.EvaluationProcess, "begin", begin)
    assert main(["resume", "run"]) == 0
    assert evaluations(run)[:2] == evaluations(whole)[:2], "of the state of then"
    assert [step // 2000 for step, _ in evaluations(run)] == [0, 1, 2]
    steps = read_metrics(run)["step"]
    assert steps == sorted(steps)


MINE = """
        import gymnasium as gym
        from parl_like import Experiment, register

        class Line(gym.Env):
            observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.at = 0
                return 0, {}

            def step(self, act):
                self.at += 1
                return min(self.at, 3), float(act), self.at == 3, False, {}

        gym.register(id="Line-v0", entry_point=Line)
        register(Experiment(name="mine", robot="single", config=dict(algorithm="QLearning", env="mine:Line-v0", total_steps=600)))
        """


@pytest.mark.slow
def test_an_experiment_of_ones_own_is_found_there_too(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    assert main(["train", "./mine.py", "eval_every=300", "eval_process=true", "eval_episodes=3", "run_dir=run"]) == 0
    assert len(evaluations(RunDir.open("run"))) == 3


def test_a_run_directory_does_not_choose_what_the_process_imports(tmp_path):
    """The run says that another file has registered its experiment; the user has typed which one it is."""
    for name, more in (("told", ""), ("evil", "\nopen('imported', 'w').close()\n")):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(MINE).replace('"mine', '"told') + more)
    assert main(["train", "./told.py", "run_dir=run"]) == 0
    told = Path("run/run.json")
    text = told.read_text()
    assert "told.py" in text
    told.write_text(text.replace(f"{tmp_path}/told.py", f"{tmp_path}/evil.py"))
    assert main(["resume", "run", "total_steps=900", "eval_every=300", "eval_process=true", "--from", "./told.py"]) == 0
    assert evaluations(RunDir.open("run")) and not Path("imported").exists()


def test_what_goes_with_it(capsys):
    for words in (["eval_process=true"], ["eval_process=true", "eval_every=100", "stop_score=1"]):
        assert main(["train", "qlearning-frozenlake", *words]) == 2
        assert "eval_process=true is for evaluations while training (eval_every=)" in capsys.readouterr().err


@pytest.mark.slow
def test_training_goes_on_meanwhile(monkeypatch):
    """An evaluation that takes as long as it likes holds nothing up until the next one is due."""
    seen = []
    start = evaluation_process.EvaluationProcess._start

    def slow(self, step):
        start(self, step)
        if not step:
            os.kill(self._child.pid, signal.SIGSTOP)
            self._begun = time.monotonic()

    take = evaluation_process.EvaluationProcess.take

    def watched(self, waits=lambda: False):
        if self._child is not None and self._step == 0 and waits():
            seen.append(time.monotonic() - self._begun)
            os.kill(self._child.pid, signal.SIGCONT)
        return take(self, waits)

    monkeypatch.setattr(evaluation_process.EvaluationProcess, "_start", slow)
    monkeypatch.setattr(evaluation_process.EvaluationProcess, "take", watched)
    code, run = train("run", "eval_process=true")
    assert code == 0 and seen and [step // 2000 for step, _ in evaluations(run)] == [0, 1, 2]

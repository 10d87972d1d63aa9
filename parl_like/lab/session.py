"""One process's part of a run: trains a robot in a run directory until it finishes, stops or fails."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.data.storage.archive import ArchiveError
from parl_like.environment.stop_conditions import StopWhen
from parl_like.lab import config as configs
from parl_like.lab import foreign
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.display import Display
from parl_like.lab.evaluation_process import EvaluationProcess
from parl_like.lab.evaluations import Evaluations, evaluation_episodes, evaluation_seed
from parl_like.lab.experiment import Experiment
from parl_like.lab.following import Facts, Follower, followers_of
from parl_like.lab.goal import Goal
from parl_like.lab.progress import show
from parl_like.lab.reports import plots
from parl_like.lab.runs import metrics as metrics_files
from parl_like.lab.runs.checkpoint import Checkpoints, Loaded
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir, State, logged
from parl_like.lab.signals import Signals
from parl_like.lab.text import escaped
from parl_like.lab.yaml_text import Tree, UsageError
from parl_like.run.diagnosis import refuse_divergence
from parl_like.run.evaluation import hold_still
from parl_like.values.errors import Diverged, without_trace
from parl_like.values.user_calls import users_lines

if TYPE_CHECKING:
    from parl_like.run.robot import Robot

log = logging.getLogger("parl_like.lab")

FINISHED, FAILED, USAGE, STOPPED, DIVERGED = 0, 1, 2, 3, 4
"""Exit codes: done; an error; asked for what cannot be; stopped by a signal after a clean save; training diverged."""

Report = Callable[[Tree], None]

STANDARD = ("return/mean", "return/last", "episode/length")
"""Metrics that every run's CSV has, from its first row on."""

GIVE_UP_S = 30.0  # a disk that refused every checkpoint of so many seconds (three at least) ends the run
FAILED_LINE = "the run failed"
DESCRIBE_S = 1.0  # at least so long lies between two descriptions of the robot
DESCRIBE_SHARE = 0.005  # of the time that they may take, on a slow disk
END_PATIENCE_S = 5.0  # how long a run that ends waits for a disk that refuses


class Session:
    """Trains one robot in one run directory, from here until it finishes, stops or fails."""

    robot: Robot
    metrics: metrics_files.MetricsLog
    evaluations: Evaluations

    def __init__(self, experiment: Experiment, config: ExperimentConfig, run: RunDir, stream: TextIO | None, *,
                 debug: bool = False, report: Report | None = None, timeline: bool = False) -> None:
        """`timeline`: see `parl_like.drivers.timeline.Timeline`, which writes `timeline.json` of the run directory."""
        self.timeline = timeline
        self.experiment, self.config, self.run = experiment, config, run
        self.debug, self.report = debug, report
        self.display = Display(stream, silent=(FAILED_LINE,))  # of a failure its last line is shown
        run.outbox.warn = self._warn
        self.checkpoints = Checkpoints(run.checkpoints, keep=config.keep_checkpoints, give_up_s=GIVE_UP_S, warn=self._warn)
        self.seconds_before = 0.0
        self.started = time.perf_counter()
        self.saved_step = self.last_row = -1
        self._describe_at = 0.0
        self.result: Tree | None = None
        self.ended: tuple[State, str] = "running", ""
        self.followers: list[Follower] = []
        self.evaluations = Evaluations(config)
        if config.eval_process:
            self.evaluations.process = EvaluationProcess(
                run, config, evaluation_episodes(experiment, config), evaluation_seed(config), self._note_evaluation, self._warn)

    def go(self, robot: Robot, loaded: Loaded | None) -> int:
        """Everything from the first line on the screen to the exit code. `loaded`: the checkpoint whose state the robot has."""
        self.robot = robot
        with logged(self.run, self.display.warn), Signals(self.run, self.display.say_amid) as signals:
            try:
                self._open(loaded)
                try:
                    self._train(signals)
                except Exception as error:
                    if signals.received or not _diverged(error):
                        raise
                    self._roll_back(error)
                    self._train(signals)
                if not signals.received:
                    self._finish(signals)
                whole = self.result is not None and self.result["stopped_by"] is None
                code = self._end("finished", "") if whole else self._end("stopped", signals.received)
            except BaseException as error:
                code = self._failed(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self.evaluations.stop()
        if self.report is not None:
            state, reason = self.ended
            self.report({"run": str(self.run.path), "state": state, "exit_reason": reason, **(self.result or {})})
        return code

    def step(self) -> int:
        return int(self.robot.counters()["env_steps"])

    def seconds(self) -> float:
        """Return the seconds of training, over all processes of this run."""
        return self.seconds_before + time.perf_counter() - self.started

    # ---- the phases

    def _open(self, loaded: Loaded | None) -> None:
        config, run = self.config, self.run
        verb = "train" if loaded is None else "resume"
        parts = f"robot {self.experiment.robot}", f"{config.n_agents} agents", config.driver, f"seed {config.seed}"
        self.title = f"{self.experiment.name} ({', '.join(parts)})"
        self.display.say(f"{verb} {self.title}: {config.total_steps:,} env steps -> {run.path}; Ctrl-C saves and stops")
        ways = {name: way for name, task in self.robot.tasks.items() if (way := getattr(task, "computes", ""))}
        if ways:
            self.display.say("computed by: " + "; ".join(f"{name} {way}" for name, way in ways.items()))
        for note in self.robot.notes:
            run.event("note", text=note)
            self.display.say(note)
        if config.tensorboard and metrics_files.tensorboard_missing():
            self.display.say("no TensorBoard files: tensorboard is not installed; `pip install 'parl_like[tb]'`")
        if self.timeline:
            from parl_like.drivers.timeline import Timeline  # a start loads only what it uses

            self.robot.pool.hooks.add(Timeline(run.path / "timeline.json"))
            self.display.say(f"timeline: {run.path}/timeline.json (a later one has a number), for the page ui.perfetto.dev")
        self.followers = followers_of(self.robot)
        for follower in self.followers:
            self.display.say(f"{type(follower).__name__}: {follower.mode}")
            name = f"{run.path.name}-{re.sub('[^0-9]', '', run.info().started)[:14]}"
            follower.follow(Facts(run.path.name, name, configs.to_dict(config), run.path.absolute()))
        self._write_from(self.step())
        if loaded is None:
            run.event("started", pid=os.getpid())
        else:
            self.seconds_before = loaded.meta.seconds
            self.saved_step = self.step()
            run.event("resumed", pid=os.getpid(), step=self.step())
        self.started = time.perf_counter()

    def _write_from(self, step: int) -> None:
        """Opens the metrics and the progress, from `step` on; what was written of later ones goes."""
        metrics_files.truncate(self.run, step)
        self.evaluations = Evaluations(self.config, metrics_files.each_evaluation(self.run), self.evaluations.process)
        self._show_evaluated()
        self.last_row = step
        self.metrics = metrics_files.MetricsLog(self.run, tensorboard=self.config.tensorboard, start_step=step)
        self.evaluations.go_on(step)
        self.display.begin(self.title, self.config.total_steps, step, self.config.log_every_s)

    def _train(self, signals: Signals) -> None:
        """Iterations until `total_steps` or `stop_score`, with a checkpoint at every multiple of `checkpoint_every`, 0 included,
        and at the end; and an evaluation at every multiple of `eval_every`, 0 included.

        Multiples are counted from step 0, not from where this process began, and every save is preceded by the robot's boundary:
        so a run that was cut at a checkpoint and resumed meets the same boundaries as one that was not. Where both are due the
        evaluation comes second: so it is the same in a run that has come there and in one that resumes there.
        """
        total, every = self.config.total_steps, self.config.checkpoint_every
        step = self.step()
        if every and self.saved_step < 0 == step:
            self._save(last=False)  # what a run that is interrupted before its first checkpoint goes on from, exactly
        self._evaluate_if_due(step, signals)
        while step < total and not signals.received and not self.evaluations.reached():
            stop = min(total, (step // every + 1) * every) if every else total
            before = step
            iterations = self.robot.iterate(stop)
            for _ in iterations:
                step = self.step()
                if step // self.config.metrics_every > self.last_row // self.config.metrics_every:
                    self._write_row(step)
                self.display.tick(step, self._shown)
                self.run.outbox.tend()
                if step < stop:
                    self._evaluate_if_due(step, signals)
                if signals.received or signals.saves or self.evaluations.reached():
                    break
            if (close := getattr(iterations, "close", None)) is not None:
                close()  # a generator left in the middle tidies up now, not when it is collected
            step = self.step()
            ended = bool(signals.received) or self.evaluations.reached()
            early, signals.saves = ended or signals.saves, False
            if step == before and not early:
                raise RuntimeError(f"robot.iterate({stop}) ended at env step {step} without a step; expected it to reach {stop}")
            step = self._save(last=step >= total or ended, interrupted=early and step < stop)
            if step < total and not ended:
                self._evaluate_if_due(step, signals)
        self.evaluations.take(lambda: not signals.received)
        self.evaluations.stop()
        if step > self.last_row:
            self._write_row(step)
        self._describe(step)
        if step != self.saved_step:
            self._save(last=True)
        refuse_divergence(getattr(self.robot, "tasks", {}))

    def _roll_back(self, error: Exception) -> None:
        """Training has diverged: puts the robot back to the last checkpoint of this process; raises `error` where there is none.

        Its generators move on, or the same data would bring it to the same end. So the run is no longer the one of its seed,
        which its events say.
        """
        reached, reason = self.step(), str(error).partition("\n")[0]
        if self.saved_step < 0:
            raise error
        try:
            loaded = self.checkpoints.load(self.checkpoints.root / f"{self.saved_step:09d}")
        except (ArchiveError, OSError) as second:
            error.add_note(f"the checkpoint of step {self.saved_step} cannot be loaded: {second}")
            raise error from error.__cause__
        self.robot.load_state_dict(_moved_on(loaded.tree))
        step = self.step()
        self.display.close()
        self._write_from(step)
        self.run.event("rolled back", step=step, reached=reached, reason=reason)
        back = f"once, training goes back to the checkpoint of step {step:,}"
        self.display.say(f"diverged at env step {reached:,} ({reason}); {back}")

    def _finish(self, signals: Signals) -> None:
        """Evaluation, `result.json`, the picture, and four lines for the person who waits.

        A signal ends the evaluation at its next step: `result.json` then has the episodes that were over, who stopped it, and no
        verdict. All training is saved, so a resume evaluates anew.
        """
        self.display.close()
        step, seconds, trace = self.step(), self.seconds(), self.robot.trace_hash()
        episodes = evaluation_episodes(self.experiment, self.config)
        evaluation = self._evaluate(signals)
        stopped_by = signals.received if evaluation["episodes"] < episodes else None
        if not stopped_by and self.evaluations.missing(step):
            self._note_evaluation(step, evaluation)
        goal = Goal(self.experiment, self.config)
        solved = None if stopped_by else goal.verdict({**self._metrics(), **evaluation})
        self.result = {
            "experiment": self.experiment.name, "solved": solved, "stopped_by": stopped_by, "evaluation": evaluation,
            "trace_hash": trace,
            "env_steps": step, "seconds": seconds, "steps_per_s": step / seconds if seconds > 0 else None,
            "counters": self.robot.counters(),
            "expect": goal.bounds(),
            "never_learned": dict(self.robot.never_learned()), "remarks": list(self.robot.remarks()),
            "notes": list(self.robot.notes),
            **({"best": self.evaluations.summary()} if self.config.eval_every else {}),
        }
        for remark in self.result["remarks"]:
            self._warn(remark)
        self.run.save_result(self.result)
        if stopped_by:
            self.display.say(f"the evaluation was stopped after {int(evaluation['episodes'])} of {episodes} episodes")
            return
        try:
            out = self.run.plots / "learning_curve.png"
            picture = f"learning curve: {plots.learning_curve([self.run], out, metric=self._drawn(), least=2)}"
        except plots.PlotError as error:
            picture = str(error)
        self.display.say(goal.line(solved, {**self._metrics(), **evaluation}, min(step, self.config.total_steps)))
        for line in self._learned():
            self.display.say(line)
        self.display.say(f"{step:,} env steps in {seconds:.1f} s ({step / max(seconds, 1e-9):,.0f} steps/s)")
        self.display.say(f"everything is in {self.run.path}; {picture}")
        self.display.say(f"next: `parl-like play {self._again()}` or `parl-like plot {self.run.typed}`")

    def _losses(self) -> list[str]:
        """Metrics that are losses, and have a value."""
        return [key for key, value in self._metrics().items() if key.endswith("loss") and not math.isnan(value)]

    def _drawn(self) -> str:
        """The metric of the picture: returns, or where nobody acted those of evaluations, or else a loss."""
        if self.robot.counters()["episodes"]:
            return plots.DEFAULT_METRIC
        others = [plots.EVALUATED] * bool(self.evaluations.scores) + self._losses()
        return others[0] if others else plots.DEFAULT_METRIC

    def _learned(self) -> list[str]:
        """Say what each task has learned, of a run in which no episode has ended, such as one from recorded rows."""
        counts, metrics = self.robot.counters(), self._metrics()
        if counts["episodes"]:
            return []
        lines = []
        for name in (key.removeprefix("updates/") for key, n in counts.items() if key.startswith("updates/") and n):
            counted = [f"{counts[key]:,} {key.partition('/')[0]}" for key in (f"updates/{name}", f"rows/{name}") if key in counts]
            own = f"{name}/"
            losses = [f"{key.removeprefix(own)} {metrics[key]:.4g}" for key in self._losses() if key.startswith(own)]
            lines.append(f"task {name!r} learned: {', '.join([*counted, *losses])}")
        return lines

    # ---- evaluations

    def _evaluate(self, signals: Signals) -> dict[str, float]:
        """Numbers of an evaluation, always with the same seeds. A signal ends it at its next step."""
        struck = StopWhen(lambda _: bool(signals.received))
        hold_still(self.robot)
        episodes, seed = evaluation_episodes(self.experiment, self.config), evaluation_seed(self.config)
        return self.robot.evaluate(episodes=episodes, seed=seed, stop=struck).numbers()

    def _evaluate_if_due(self, step: int, signals: Signals) -> None:
        """One that a signal cuts leaves nothing, so that a resume does it anew."""
        self.evaluations.take()
        if self.evaluations.due(step) and not signals.received:
            if self.evaluations.process is not None:
                self.evaluations.take(lambda: not signals.received)  # one at a time
                if not signals.received:
                    self.evaluations.begin(step, self.robot.acting_state(), self._row(step))
                return
            numbers = self._evaluate(signals)
            if numbers["episodes"] >= evaluation_episodes(self.experiment, self.config):
                self._note_evaluation(step, numbers)

    def _note_evaluation(self, step: int, numbers: Mapping[str, float], row: Mapping[str, float] | None = None,
                         acted: Mapping[str, object] | None = None) -> None:
        """`row`, `acted`: metrics of that step, and what acted there; None: those of now."""
        score, best = numbers["score"], self.evaluations.best()[1]
        self.evaluations.add(step, score)
        found = {f"{metrics_files.EVALUATION}{key}": value for key, value in numbers.items()}
        self._write(dict(self._row(step) if row is None else row) | found)
        if score > best:
            self.checkpoints.save_best(step, self.robot.acting_state() if acted is None else acted, self._meta(), score)
        self.run.event("evaluated", step=step, score=score)
        self._show_evaluated()
        reached = f"; stop_score={self.config.stop_score:g} is reached" if self.evaluations.reached() else ""
        self.display.say(f"evaluation at env step {step:,}: score {score:.4g}{', the best so far' * (score > best)}{reached}")

    def _show_evaluated(self) -> None:
        if self.config.eval_every:
            self.run.update(evaluated=self.evaluations.summary())

    # ---- rows and checkpoints

    def _metrics(self) -> dict[str, float]:
        metrics = {**dict.fromkeys(STANDARD, math.nan), **self.robot.metrics(), **self.robot.counters()}
        metrics.pop("env_steps")  # `step` everywhere
        return metrics

    def _shown(self) -> dict[str, float]:
        """Return what the progress shows: evaluations while training, too."""
        return self._metrics() | self.evaluations.shown()

    def _write_row(self, step: int) -> None:
        self.last_row = step
        self._write(self._row(step))
        if (begin := time.perf_counter()) >= self._describe_at:
            self._describe(step)
            end = time.perf_counter()
            self._describe_at = end + max(DESCRIBE_S, (end - begin) / DESCRIBE_SHARE)

    def _describe(self, step: int) -> None:
        """Keeps who takes part in the robot at this step, for whoever draws it."""
        self.run.save_description({"step": step, **self.robot.describe()})

    def _write(self, row: Mapping[str, float]) -> None:
        self.metrics.write(row)
        for follower in self.followers:
            follower.write(row)

    def _row(self, step: int) -> dict[str, float]:
        clock = {"step": step, "elapsed_s": round(self.seconds(), 3), "steps_per_s": self.display.steps_per_s()}
        return {**clock, **self._metrics()}

    def _meta(self) -> dict[str, object]:
        """Return what a checkpoint says of its run."""
        return {"experiment": self.experiment.name, "seconds": self.seconds(), "config": configs.to_dict(self.config)}

    def _save(self, *, last: bool, interrupted: bool = False, failed: bool = False) -> int:
        """Brings the robot to a boundary and saves it. Returns the env step of the checkpoint.

        A disk that refuses is survived while training goes on, for a full disk is often emptied in time. At the end it is waited
        for, but not for long.
        """
        self.run.outbox.check()
        self.robot.checkpoint_boundary()
        whole = self.config.checkpoint_buffers or last or interrupted
        step, meta = self.step(), {**self._meta(), "interrupted": interrupted, "failed": failed, "buffers": whole}
        score = None if self.config.eval_every else self.robot.metrics().get("return/mean", math.nan)
        patience = END_PATIENCE_S if last else 0.0
        state = self.robot.state_dict() if whole else self.robot.state_dict(buffers=False)
        if self.checkpoints.save(step, dict(state), meta, score, patience=patience) is not None:
            self.saved_step = step
            self.run.event("checkpoint", step=step)
        elif last:
            raise OSError(f"the last checkpoint, of env step {step}, could not be saved")
        return step

    def _warn(self, text: str) -> None:
        log.warning(escaped(text))

    # ---- the ends

    def _again(self) -> str:
        """Return the words by which another command goes on with this run."""
        return foreign.named(self.run.path, self.config, self.experiment)

    def _followed(self, state: State) -> None:
        for follower in self.followers:
            follower.close(state)

    def _end(self, state: State, reason: str) -> int:
        self.run.event(state, reason=reason, step=self.step())
        if self.evaluations.process is not None and not self.run.outbox.flush(END_PATIENCE_S):
            metrics_files.truncate(self.run, self.step())  # rows of evaluations that took longer go to their places
        if left := self.run.outbox.flush(END_PATIENCE_S):
            raise OSError(f"the disk did not take {', '.join(left)} of {self.run.path}; free space, then resume")
        self.run.ended(state, reason)
        self.ended = state, reason
        self._followed(state)
        if state == "stopped":
            self.display.close()
            self.display.say(f"stopped by {reason} at env step {self.step():,}; continue with `parl-like resume {self._again()}`")
            return STOPPED
        return FINISHED

    def _failed(self, error: BaseException) -> int:
        """Leaves what there is: the traceback in the log, the last metrics, and a checkpoint if one can be made."""
        reason = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {without_trace(error)}"
        self.ended = "failed", reason
        self._followed("failed")
        log.error("%s\n%s", FAILED_LINE, "".join(traceback.format_exception(error)))
        there = f"; the traceback is in {self.run.log_file}"
        with contextlib.suppress(OSError, UsageError):  # a full disk must not hide what happened
            if self.display.progress is not None:
                self.display.close()
                self._rescue()
            self.run.ended("failed", reason)
            self.run.event("failed", reason=reason)
            self.run.outbox.flush(END_PATIENCE_S)
        try:
            self.run.outbox.check()
            if (step := self.checkpoints.newest()) is not None:
                there += f"; continue from step {step} with `parl-like resume {self._again()}`"
        except (OSError, UsageError):
            there = ""  # a deleted run has neither log nor checkpoint
        if self.debug and self.display.stream is not None:
            traceback.print_exception(error, file=self.display.stream)
        else:
            for line in users_lines(error):
                show(self.display.stream, line)
        show(self.display.stream, f"error: {' '.join(reason.split())}{there}")
        return DIVERGED if _diverged(error) else FAILED

    def _rescue(self) -> None:
        """The last row, and a checkpoint of this moment. Whatever broke the run may break this too, and must not hide it."""
        for done, save in ((self.last_row, self._write_row),
                           (self.saved_step, lambda _: self._save(last=True, interrupted=True, failed=True))):
            try:
                self.run.outbox.check()
                if (step := self.step()) != done:
                    save(step)
            except RunError:
                raise  # the directory is gone: nothing can be saved
            except Exception as error:  # noqa: BLE001
                log.error("could not save after the failure: %s: %s", type(error).__name__, error)


def _diverged(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Diverged):
        error = error.__cause__
    return error is not None


def _moved_on(tree: object) -> Any:
    """The same state with every generator in it far ahead of where it was."""
    if not isinstance(tree, dict):
        return tree
    if isinstance(tree.get("kind"), str) and tree["kind"] == "PCG64":
        generator = np.random.default_rng(0)
        set_rng_state(generator, tree)
        return rng_state(np.random.Generator(generator.bit_generator.jumped()))  # type: ignore[attr-defined]
    return {key: _moved_on(value) for key, value in tree.items()}

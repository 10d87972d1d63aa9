"""One process's part of a run: trains a robot in a run directory until it finishes, stops or fails."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO

import numpy as np

from parl_like.data.archive import ArchiveError
from parl_like.data.generators import rng_state, set_rng_state
from parl_like.errors import Diverged
from parl_like.lab import config as configs
from parl_like.lab import metrics as metrics_files
from parl_like.lab import plots
from parl_like.lab.checkpoint import Checkpoints, Loaded
from parl_like.lab.config import ExperimentConfig, UsageError
from parl_like.lab.experiment import Experiment
from parl_like.lab.outbox import RunError
from parl_like.lab.progress import Progress, show
from parl_like.lab.rundir import RunDir, State, logged

if TYPE_CHECKING:
    from parl_like.robot import Robot

log = logging.getLogger("parl_like.lab")

FINISHED, FAILED, USAGE, STOPPED, DIVERGED = 0, 1, 2, 3, 4
"""Exit codes: done; an error; asked for what cannot be; stopped by a signal after a clean save; training diverged."""

Report = Callable[[dict[str, Any]], None]

STANDARD = ("return/mean", "return/last", "episode/length")
"""Metrics that every run's CSV has, from its first row on."""

DEFAULT_EVAL_EPISODES = 10
EVAL_SEED = 1_000_000  # evaluation is seeded with this plus the run's seed, far from the seeds people train with
GIVE_UP_S = 30.0  # a disk that refused every checkpoint of so many seconds (three at least) ends the run
END_PATIENCE_S = 5.0  # how long a run that ends waits for a disk that refuses


class Signals:
    """SIGINT and SIGTERM ask for a clean stop; the second one ends the process at once.

    Attributes:
        received: Name of the first signal, or empty.
    """

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.received = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self.received:
            self.received = name
            # os.write: print is not allowed to be interrupted by itself.
            os.write(2, f"\n{name}: stopping after this iteration and a save; once more to leave at once\n".encode())
            return
        with contextlib.suppress(Exception):
            self.run.ended("stopped", f"{name}, second signal; nothing was saved after the last checkpoint")
        if sys.stderr.isatty():
            os.write(2, b"\x1b[?25h")  # the live table hides the cursor
        os._exit(128 + number)


def evaluation_seed(config: ExperimentConfig) -> int:
    return EVAL_SEED + config.seed


def evaluation_episodes(experiment: Experiment, config: ExperimentConfig) -> int:
    return config.eval_episodes or experiment.eval_episodes or DEFAULT_EVAL_EPISODES


class Session:
    """Trains one robot in one run directory, from here until it finishes, stops or fails."""

    robot: Robot
    progress: Progress
    metrics: metrics_files.MetricsLog

    def __init__(self, experiment: Experiment, config: ExperimentConfig, run: RunDir, stream: TextIO | None, debug: bool,
                 report: Report | None) -> None:
        self.experiment, self.config, self.run = experiment, config, run
        self.stream, self.debug, self.report = stream, debug, report
        run.outbox.warn = self._warn
        self.checkpoints = Checkpoints(run.checkpoints, keep=config.keep_checkpoints, give_up_s=GIVE_UP_S, warn=self._warn)
        self.seconds_before = 0.0
        self.started = time.perf_counter()
        self.saved_step = self.last_row = -1
        self.result: dict[str, Any] | None = None
        self.ended: tuple[State, str] = "running", ""
        self._writers = contextlib.ExitStack()

    def go(self, robot: Robot, loaded: Loaded | None) -> int:
        """Everything from the first line on the screen to the exit code. `loaded`: the checkpoint whose state the robot has."""
        self.robot = robot
        with logged(self.run), Signals(self.run) as signals, self._writers:
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
                    self._finish()
                code = self._end("stopped", signals.received) if self.result is None else self._end("finished", "")
            except BaseException as error:
                code = self._failed(error)
                if not isinstance(error, Exception):
                    raise
        if self.report is not None:
            state, reason = self.ended
            self.report({"run": str(self.run.path), "state": state, "exit_reason": reason, **(self.result or {})})
        return code

    def say(self, text: str) -> None:
        log.info(text)
        show(self.stream, text)

    def step(self) -> int:
        return int(self.robot.counters()["env_steps"])

    def seconds(self) -> float:
        """Of training, over all processes of this run."""
        return self.seconds_before + time.perf_counter() - self.started

    # ---- the phases

    def _open(self, loaded: Loaded | None) -> None:
        config, run = self.config, self.run
        verb = "train" if loaded is None else "resume"
        parts = f"robot {self.experiment.robot}", f"{config.n_agents} agents", config.driver, f"seed {config.seed}"
        self.title = f"{self.experiment.name} ({', '.join(parts)})"
        self.say(f"{verb} {self.title}: {config.total_steps:,} env steps -> {run.path}; Ctrl-C saves and stops")
        if config.tensorboard and metrics_files.tensorboard_missing():
            self.say("no TensorBoard files: tensorboard is not installed; `pip install 'parl_like[tb]'`")
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
        self._writers.close()
        metrics_files.truncate(self.run, step)
        self.last_row = step
        self.metrics = metrics_files.MetricsLog(self.run, tensorboard=self.config.tensorboard, start_step=step)
        self.progress = Progress(self.title, self.config.total_steps, step, self.config.log_every_s, self.stream)
        self._writers.callback(self.metrics.flush)
        self._writers.callback(self.progress.close)

    def _train(self, signals: Signals) -> None:
        """Iterations until `total_steps`, with a checkpoint at every multiple of `checkpoint_every`, 0 included, and at the end.

        Multiples are counted from step 0, not from where this process began, and every save is preceded by the robot's boundary:
        so a run that was cut at a checkpoint and resumed meets the same boundaries as one that was not.
        """
        total, every = self.config.total_steps, self.config.checkpoint_every
        step = self.step()
        if step == 0 and every:
            self._save(last=False)  # what a run that is interrupted before its first checkpoint goes on from, exactly
        while step < total and not signals.received:
            stop = min(total, (step // every + 1) * every) if every else total
            before = step
            iterations = self.robot.iterate(stop)
            for _ in iterations:
                step = self.step()
                if step // self.config.metrics_every > self.last_row // self.config.metrics_every:
                    self._write_row(step)
                self.progress.tick(step, self._metrics)
                self.run.outbox.tend()
                if signals.received:
                    break
            if (close := getattr(iterations, "close", None)) is not None:
                close()  # a generator left in the middle tidies up now, not when it is collected
            step = self.step()
            if step == before and not signals.received:
                raise RuntimeError(f"robot.iterate({stop}) ended at env step {step} without a step; expected it to reach {stop}")
            step = self._save(last=step >= total or bool(signals.received), interrupted=bool(signals.received) and step < stop)
        if step > self.last_row:
            self._write_row(step)
        if step != self.saved_step:
            self._save(last=True)

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
        self._write_from(step)
        self.run.event("rolled back", step=step, reached=reached, reason=reason)
        self.say(f"diverged at env step {reached:,} ({reason}); once, training goes back to the checkpoint of step {step:,}")

    def _finish(self) -> None:
        """Evaluation, `result.json`, the picture, and four lines for the person who waits."""
        self.progress.close()
        step, seconds, trace = self.step(), self.seconds(), self.robot.trace_hash()
        episodes = evaluation_episodes(self.experiment, self.config)
        evaluation = self.robot.evaluate(episodes=episodes, seed=evaluation_seed(self.config)).numbers()
        solved = self.experiment.verdict({**self._metrics(), **evaluation})
        self.result = {
            "experiment": self.experiment.name, "solved": solved, "evaluation": evaluation, "trace_hash": trace,
            "env_steps": step, "seconds": seconds, "steps_per_s": step / seconds if seconds > 0 else None,
            "counters": self.robot.counters(),
            "expect": {key: [bounds.at_least, bounds.at_most] for key, bounds in self.experiment.bounds.items()},
            "never_learned": dict(self.robot.never_learned()), "remarks": list(self.robot.remarks()),
        }
        for remark in self.result["remarks"]:
            self._warn(remark)
        self.run.save_result(self.result)
        try:
            picture = f"learning curve: {plots.learning_curve([self.run], self.run.plots / 'learning_curve.png')}"
        except plots.PlotError as error:
            picture = str(error)
        self.say(_verdict_line(solved, self.experiment, {**self._metrics(), **evaluation}, self.config.total_steps))
        self.say(f"{step:,} env steps in {seconds:.1f} s ({step / max(seconds, 1e-9):,.0f} steps/s)")
        self.say(f"everything is in {self.run.path}; {picture}")
        self.say(f"next: `parl-like play {self.run.path}` or `parl-like plot {self.run.path}`")

    # ---- rows and checkpoints

    def _metrics(self) -> dict[str, float]:
        metrics = {**dict.fromkeys(STANDARD, math.nan), **self.robot.metrics(), **self.robot.counters()}
        metrics.pop("env_steps")  # `step` everywhere
        return metrics

    def _write_row(self, step: int) -> None:
        self.last_row = step
        clock = {"step": step, "elapsed_s": round(self.seconds(), 3), "steps_per_s": self.progress.steps_per_s()}
        updates = [count for key, count in self.robot.counters().items() if key.startswith("updates/")]
        self.metrics.write({**clock, **self._metrics()}, complete=all(updates))

    def _save(self, *, last: bool, interrupted: bool = False) -> int:
        """Brings the robot to a boundary and saves it. Returns the env step of the checkpoint.

        A disk that refuses is survived while training goes on, for a full disk is often emptied in time. At the end it is waited
        for, but not for long.
        """
        self.run.outbox.check()
        self.robot.checkpoint_boundary()
        step = self.step()
        meta = {"experiment": self.experiment.name, "seconds": self.seconds(), "config": configs.to_dict(self.config),
                "interrupted": interrupted}
        score = self.robot.metrics().get("return/mean", math.nan)
        patience = END_PATIENCE_S if last else 0.0
        if self.checkpoints.save(step, self.robot.state_dict(), meta, score, patience=patience) is not None:
            self.saved_step = step
            self.run.event("checkpoint", step=step)
        elif last:
            raise OSError(f"the last checkpoint, of env step {step}, could not be saved")
        return step

    def _warn(self, text: str) -> None:
        self.run.event("warning", text=text)
        self.say(f"warning: {text}")

    # ---- the ends

    def _end(self, state: State, reason: str) -> int:
        self.run.event(state, reason=reason, step=self.step())
        if left := self.run.outbox.flush(END_PATIENCE_S):
            raise OSError(f"the disk did not take {', '.join(left)} of {self.run.path}; free space, then resume")
        self.run.ended(state, reason)
        self.ended = state, reason
        if state == "stopped":
            self.progress.close()
            self.say(f"stopped by {reason} at env step {self.step():,}; continue with `parl-like resume {self.run.path}`")
            return STOPPED
        return FINISHED

    def _failed(self, error: BaseException) -> int:
        """Leaves what there is: the traceback in the log, the last metrics, and a checkpoint if one can be made."""
        reason = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        self.ended = "failed", reason
        log.error("the run failed\n%s", "".join(traceback.format_exception(error)))
        there = f"; the traceback is in {self.run.log_file}"
        with contextlib.suppress(OSError, UsageError):  # a full disk must not hide what happened
            if hasattr(self, "progress"):
                self.progress.close()
                self._rescue()
            self.run.ended("failed", reason)
            self.run.event("failed", reason=reason)
            self.run.outbox.flush(END_PATIENCE_S)
        try:
            self.run.outbox.check()
            if (steps := self.checkpoints.exact()) is not None:
                there += f"; continue from step {steps[0]} with `parl-like resume {self.run.path}`"
        except (OSError, UsageError):
            there = ""  # a deleted run has neither log nor checkpoint
        if self.debug and self.stream is not None:
            traceback.print_exception(error, file=self.stream)
        show(self.stream, f"error: {' '.join(reason.split())}{there}")
        return DIVERGED if _diverged(error) else FAILED

    def _rescue(self) -> None:
        """The last row, and a checkpoint of this moment. Whatever broke the run may break this too, and must not hide it."""
        for done, save in ((self.last_row, self._write_row),
                           (self.saved_step, lambda _: self._save(last=True, interrupted=True))):
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


def _moved_on(tree: Any) -> Any:
    """The same state with every generator in it far ahead of where it was."""
    if not isinstance(tree, dict):
        return tree
    if isinstance(tree.get("kind"), str) and tree["kind"] == "PCG64":
        generator = np.random.default_rng(0)
        set_rng_state(generator, tree)
        return rng_state(np.random.Generator(generator.bit_generator.jumped()))  # type: ignore[attr-defined]
    return {key: _moved_on(value) for key, value in tree.items()}


def _verdict_line(solved: bool | None, experiment: Experiment, results: Mapping[str, float], steps: int) -> str:
    got = f"mean return {results.get('mean_return', math.nan):.4g} over {int(results['episodes'])} episodes"
    if solved is None:
        return f"finished: {got} (this experiment names no goal)"
    goals = []
    for key, bounds in experiment.bounds.items():
        limits = {"at least": bounds.at_least, "at most": bounds.at_most}
        value = "" if key == "mean_return" else f" (is {results.get(key, math.nan):.4g})"
        wanted = (f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
        goals.append(f"{key} {' and '.join(wanted)}{value}")
    whole = experiment.config.get("total_steps", steps)
    if not solved and steps < whole:
        return f"finished: {got} after {steps:,} of the experiment's {whole:,} steps; at their end it expects {', '.join(goals)}"
    return f"{'solved' if solved else 'not solved'}: {got}; expected {', '.join(goals)}"

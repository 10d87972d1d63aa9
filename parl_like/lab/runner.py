"""The verbs of a run: train, resume, evaluate, play, and `load_run` for scripts."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from parl_like.data.storage.archive import ArchiveError, Manifest
from parl_like.data.storage.safe_files import check_named
from parl_like.data.storage.tree_encoding import EncodedComponent, refusal
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import foreign, recorded, sizes, snapshot, user_experiments, yaml_text
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.evaluations import evaluation_episodes, evaluation_seed
from parl_like.lab.experiment import Experiment
from parl_like.lab.following import followers_of
from parl_like.lab.progress import show
from parl_like.lab.runs import stored
from parl_like.lab.runs.checkpoint import Checkpoints, Loaded
from parl_like.lab.runs.lock import RunLock
from parl_like.lab.runs.metrics import check_table, evaluations
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.session import Report, Session
from parl_like.lab.sizes import STATE_FACTOR, STATE_ROOM
from parl_like.lab.text import printer
from parl_like.lab.yaml_text import ConfigError, Tree, UsageError
from parl_like.run.evaluation import SCORES
from parl_like.run.robot_state import WORKERS
from parl_like.values import names
from parl_like.values.errors import unknown

if TYPE_CHECKING:
    from parl_like.run.robot import Robot

MOST_EPISODES = 1_000
"""Episodes of an evaluation that only a run directory asks for."""


def train(experiment: Experiment, config: ExperimentConfig, *, command: Sequence[str] = (), stream: TextIO | None = None,
          debug: bool = False, report: Report | None = None, timeline: bool = False, sources: bool = True) -> int:
    """Trains in a new run directory.

    Args:
        config: Of the class `experiment.module().Config`.
        command: What was typed, for `run.json`.
        stream: Where people read along, with tracebacks if `debug`; None: nowhere.
        report: Called at the end, however it came, with `run`, `state`, `exit_reason`, and what `result.json` holds.
        timeline: Write `timeline.json` in the run directory, see `parl_like.drivers.timeline.Timeline`.
        sources: Keep the Python sources in the run directory, see `parl_like.lab.snapshot`.

    Returns:
        Exit code: 0 finished (solved or not), 1 failed, 3 stopped by SIGINT or SIGTERM after a clean save, 4 diverged a second
            time (the first time the run goes back to its last checkpoint).

    Raises:
        UsageError: the run directory cannot be used, or the robot refuses the configuration.
        Exception: whatever else goes wrong while the robot is built. No run directory is left then, for there was no run.
    """
    with _checked(experiment, config) as robot:
        config = _complete(config, robot)
        run = RunDir.create(experiment.name, configs.to_dict(config), command, _differs(experiment, config, robot),
                               experiments.source_of(experiment.name), _data(config))
        stored.remember(run)
        with RunLock(run.path), contextlib.ExitStack() as ends:
            if sources:
                ends.callback(snapshot.keep(run))
            return Session(experiment, config, run, stream, debug=debug, report=report, timeline=timeline).go(robot, None)


def check(experiment: Experiment, config: ExperimentConfig) -> None:
    """Raises UsageError where `train` would refuse a configuration; of what else may go wrong while the robot is built: that."""
    with _checked(experiment, config):
        pass


def resume(run_dir: str | Path, overrides: Mapping[str, object] | None = None, *, which: str = "newest",
           command: Sequence[str] = (), stream: TextIO | None = None, debug: bool = False, report: Report | None = None,
           source: str = "", timeline: bool = False, sources: bool = True) -> int:
    """Continues a run from a checkpoint, and returns an exit code as `train`.

    A stop by a signal saves at a moment that no schedule knows, and the run goes on from there, so no step is lost. But a save
    ends the unrolls and episodes that are open (episodes are carried over where environments can be cloned): such a run is a
    valid one, and not, number for number, the one that would have been. `exact` continues from the newest checkpoint of the
    schedule, and repeats the steps after it: its trace is that of a run that was never interrupted. What an error left is
    neither's choice, unless there is nothing else.

    Args:
        overrides: May give a new `total_steps` and whatever else is in RESUMABLE; must give again what names a module
            (`env=module:Id`).
        which: Checkpoint: `newest` (that no failure made), `exact` (see above), `latest`, `best`, or its step.
        source: `FILE.py` or `package.module` that registers its experiment, if the run may not have it imported by itself.
        timeline, sources: As for `train`; the files of an earlier process are kept.

    Raises:
        UsageError: no such run; its configuration does not fit its robot, or is not the one of the checkpoint; it is finished; it
            has no checkpoint.
        Exception: whatever else goes wrong until the robot has the state of the checkpoint. The run is left as it was.
    """
    run = RunDir.open(run_dir)
    with RunLock(run.path), stored.to_resume(run, overrides, source) as (experiment, kept, config):
        session = Session(experiment, config, run, stream, debug=debug, report=report, timeline=timeline)
        chosen = _choose(run, session.checkpoints, which)
        if chosen == "best" and session.checkpoints.evaluated_best() is not None:
            raise UsageError(f"the best checkpoint of {run.path} has what acts, but neither buffers nor agents to go on with; "
                             "resume from newest, exact, latest or a step (`eval` and `play` take the best)")
        exact, newest = session.checkpoints.exact(), session.checkpoints.newest()
        if which in ("newest", "exact") and exact and newest is not None and exact[0] != newest:
            between = f"{newest - exact[0]:,} steps"
            session.display.say(
                f"continuing from step {newest:,}, where the run was stopped; `--exact` would repeat the {between} since the "
                "last scheduled checkpoint, for the trace of a run that was never interrupted" if which == "newest" else
                f"continuing from step {exact[0]:,}, the last scheduled checkpoint, and repeating {between}, so that the run "
                "equals one that was never interrupted")
        with _robot(experiment, config, session.checkpoints.size()) as robot:
            loaded = session.checkpoints.load(chosen, _expected_by(robot))
            if not loaded.meta.buffers:
                session.display.say(_without_buffers(loaded, which))
            stored.refuse_changes(loaded.meta.config, configs.to_dict(kept), f"{run.config_file} is not that of the checkpoint")
            finished, goal = run.info().state == "finished", config.stop_score
            if finished and goal is not None and any(score >= goal for _, score in evaluations(run)):
                raise UsageError(f"{run.path} has finished: an evaluation reached stop_score={goal:g}; to train longer: "
                                 f"`parl-like resume {run.typed} stop_score=...` with a higher one, or null")
            if finished and loaded.meta.step >= config.total_steps:
                raise UsageError(f"{run.path} has finished its {kept.total_steps} steps; to train longer: "
                                 f"`parl-like resume {run.typed} total_steps={2 * max(loaded.meta.step, kept.total_steps)}`")
            with sizes.bounded(config):
                _restore(robot, loaded)
            check_table(run)
            for follower in followers_of(robot):
                follower.check()
            run.restarted(command, _differs(experiment, config, robot), experiments.source_of(experiment.name), _data(config))
            run.save_config(configs.to_dict(config))
            stored.remember(run)
            with contextlib.ExitStack() as ends:
                if sources:
                    ends.callback(snapshot.keep(run))
                return session.go(robot, loaded)


def _without_buffers(loaded: Loaded, which: str) -> str:
    """Return what a checkpoint without the rows of replay buffers means for who resumes it. Raises UsageError where the resume
    was to be exact."""
    said = f"the checkpoint of step {loaded.meta.step:,} has no rows of replay buffers (checkpoint_buffers=false)"
    if which == "exact":
        raise UsageError(f"{said}, so no run from there equals one that was never interrupted; resume without --exact")
    return f"{said}; they begin empty, and learning waits until they have as many as at the start"


def describe(experiment: Experiment, config: ExperimentConfig) -> str:
    """YAML text of everything that can be set, as it is; of its parts also type, default, and where it belongs."""
    with _robot(experiment, config) as robot:
        fields = yaml_text.dump_yaml(configs.to_dict(stored.with_parts(config, {})))
        return fields + (robot.parts.describe() if robot.parts is not None else "")


def load_run(run_dir: str | Path, *, checkpoint: str = "latest", source: str = "", **overrides: object) -> Any:
    """The robot of a run directory, in the state of a checkpoint: for `act`, `evaluate`, `run`, and `close`.

        with load_run("runs/2026-11-21_ppo-cartpole_s0", checkpoint="best") as robot:
            print(robot.evaluate(20))

    Nothing is written to the directory, and no code in it is run.

    Args:
        run_dir: The directory, or its name below `runs/`.
        checkpoint: `latest`, `best`, `exact` (the newest of the schedule), or a step.
        source: As for `resume`.
        overrides: Must repeat values of the configuration that name a module (`env="module:Id"`), since that would be imported.

    Raises:
        UsageError: no such run or checkpoint, or the configuration does not fit. ArchiveError: no checkpoint is good.
    """
    run = RunDir.open(run_dir)
    with stored.to_look_at(run, overrides, source) as found:
        return _loaded(run, *found, checkpoint)


def evaluate(run_dir: str | Path, *, episodes: int = 0, seed: int | None = None, which: str | Path = "latest",
             overrides: Mapping[str, object] | None = None, source: str = "") -> dict[str, object]:
    """Numbers of a trained run: `episodes`, `mean_return`, `std_return` (of the population), `min_return`, `max_return` …

    By default as after training, so the numbers of `result.json` come out again. `which`: a checkpoint, or the path of an archive
    with what acts. `overrides`, `source`: as for `resume`.
    """
    run = RunDir.open(run_dir)
    with (stored.to_look_at(run, overrides, source) as (experiment, config),
          contextlib.closing(_loaded(run, experiment, config, which)) as robot):
        seed = evaluation_seed(config) if seed is None else seed
        numbers = robot.evaluate(episodes=episodes or _episodes(run, experiment, config), seed=seed).numbers()
        where = {"run": str(run.path), "experiment": experiment.name, "step": int(robot.counters()["env_steps"]), "seed": seed}
        return {**where, **numbers}


def play(run_dir: str | Path, *, episodes: int = 1, seed: int | None = None, which: str = "latest", max_steps: int = 0,
         stream: TextIO | None = None, overrides: Mapping[str, object] | None = None, source: str = "") -> list[Tree]:
    """Records evaluation episodes as `videos/episode_<seed>.gif` in the run directory. Returns path, seed and return of each.

    A robot whose episodes say more than a film shows has its own way: `play(robot, config, path, *, seed, max_steps, stream)` in
    its module, which writes the GIF, and what else it likes beside it, and gives a dict with `return`.

    Args:
        max_steps: Environment steps after which an episode stops; 0: at its end.
        stream: Where people read along.
        overrides, source: As for `resume`.
    """
    run = RunDir.open(run_dir)
    with (stored.to_look_at(run, overrides, source) as (experiment, config),
          contextlib.closing(_loaded(run, experiment, config, which)) as robot):
        folder = run.folder(run.videos)
        own = getattr(experiment.module(), "play", None)
        first = evaluation_seed(config) if seed is None else seed
        played = []
        for each in range(first, first + episodes):
            path = folder / f"episode_{each}.gif"
            if stream is not None:  # a film of many pictures takes Pillow half a minute
                show(stream, f"{path}: playing, then writing the film ...")
            if own is None:
                seen = {"return": float(robot.play(path, seed=each, max_steps=max_steps))}
            else:
                seen = own(robot, config, path, seed=each, max_steps=max_steps, stream=stream and printer(stream))
            played.append({"path": str(path), "seed": each, **seen})
        return played


def _episodes(run: RunDir, experiment: Experiment, config: ExperimentConfig) -> int:
    """Return how many an evaluation has, if the user does not say. Raises ConfigError where a stranger's run asks for many."""
    n, rule = evaluation_episodes(experiment, config), foreign.rule()
    if n > MOST_EPISODES and rule is not None and not rule.ran:
        raise ConfigError(f"{run.config_file}: eval_episodes={n}: expected at most {MOST_EPISODES} episodes of a run that was "
                          "not trained here; give --episodes (in Python: episodes=)")
    return n


# ------------------------------------------------------------------------------------------------ from a directory to a robot


def _built(experiment: Experiment, config: ExperimentConfig, saved: int | None = None) -> Robot:
    """The experiment's robot. What its parts refuse with a ValueError is a configuration that does not fit together. `saved`:
    bytes of its checkpoints, far above which it is not that of its directory."""
    module = experiment.module()
    _refuse_odd_files(config)
    sizes.check(config)
    if "torch" in sys.modules:  # a robot without torch needs no threads of it
        sys.modules["torch"].set_num_threads(config.torch_threads)
    try:
        with sizes.bounded(config, None if saved is None else STATE_FACTOR * saved + STATE_ROOM):
            robot: Robot = module.build(config)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Config: {error}") from error
    except (LookupError, AttributeError, ArithmeticError, OSError) as error:
        if names.rule() is None:
            raise  # of code that the user knows, and wants to see the place in
        raise ConfigError(f"Config: {type(error).__name__}: {error}") from error
    if config.eval_score:
        try:
            robot.score = _score(config.eval_score)
        except BaseException:
            robot.close()
            raise
    return robot


@contextlib.contextmanager
def _robot(experiment: Experiment, config: ExperimentConfig, saved: int | None = None) -> Iterator[Robot]:
    """`_built`, and closed in the end."""
    with contextlib.closing(_built(experiment, config, saved)) as robot:
        yield robot


@contextlib.contextmanager
def _checked(experiment: Experiment, config: ExperimentConfig) -> Iterator[Robot]:
    """A robot for a new run, whose followers have what they need."""
    with _robot(experiment, config) as robot:
        for follower in followers_of(robot):
            follower.check()
        yield robot


def _refuse_odd_files(config: ExperimentConfig) -> None:
    """Raises ConfigError where a value names a pipe, a device or a socket. Our own code opens files by `data.disk`; what
    environments of others open, they open as they like."""
    for key, value in configs.flat(configs.to_dict(config)).items():
        try:
            check_named(value if isinstance(value, str) else "")
        except OSError as error:
            raise ConfigError(f"Config: key {key!r} names {value!r}, and {error.strerror}; give a plain file, or a name that no "
                              "such file has") from None


def _score(name: str) -> Any:
    """The score of this name: a number of an evaluation, or a function of the user's."""
    if name in SCORES:
        return name
    inside, things = user_experiments.candidates(name)
    found = {key: one for key, one in things.items() if inspect.isfunction(one)
             and list(inspect.signature(one).parameters) == ["robot", "episodes"]}
    if inside not in found:
        raise ConfigError(f"Config: key 'eval_score': {unknown('score', name, [*SCORES, *found])}; one of your own is a function "
                          "`def score(robot, episodes)`, written module:score")
    return found[inside]


def _loaded(run: RunDir, experiment: Experiment, config: ExperimentConfig, which: str | Path) -> Robot:
    """The robot in the state of a checkpoint, for the caller to close."""
    checkpoints = Checkpoints(run.checkpoints)
    chosen = which if isinstance(which, Path) else _choose(run, checkpoints, which)
    robot = _built(experiment, config, checkpoints.size())
    try:
        loaded = checkpoints.load(chosen, _expected_by(robot))
        if WORKERS in loaded.tree:  # whose agents and buffers this robot, which has none of them, leaves where they are
            acts = robot.acting_state().keys()
            loaded = loaded._replace(tree={key: part for key, part in loaded.tree.items() if key in acts})
        with sizes.bounded(config):
            _restore(robot, loaded)
    except BaseException:
        robot.close()
        raise
    return robot


def _expected_by(robot: Robot) -> Callable[[Manifest], None]:
    """A check that no task's saved state is much larger than the robot's own: before memory is taken for it."""
    own = {}
    for name, task in getattr(robot, "tasks", {}).items():
        arrays = EncodedComponent(Path(name), name, task.state_dict()).leaves.values()
        own[f"task.{name}"] = sum(stored.nbytes for stored, _ in arrays)

    def check(manifest: Manifest) -> None:
        for name, size in manifest.sizes().items():
            if name in own and size > STATE_FACTOR * own[name] + STATE_ROOM:
                expected = f"about {own[name]} bytes, as this robot's task has"
                raise refusal(name, expected, f"{size} bytes", "use an earlier checkpoint")

    return check


def _restore(robot: Robot, loaded: Loaded) -> None:
    try:
        robot.load_state_dict(loaded.tree)
    except ArchiveError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        text = " ".join(f"{'' if isinstance(error, ValueError) else f'{type(error).__name__}: '}{error}".split())
        raise ArchiveError(f"{loaded.path}: its state does not fit this robot: {text}") from error


def _complete(config: ExperimentConfig, robot: Robot) -> Any:
    """The configuration with every setting of what this robot is built of, also those that nobody gave."""
    return config if robot.parts is None else stored.with_parts(config, robot.parts.complete())


def _differs(experiment: Experiment, config: ExperimentConfig, robot: Robot) -> dict[str, object]:
    """Dotted key → value, where the configuration is not that of the experiment; `run_dir` is no difference."""
    defaults = configs.resolve(type(config), experiment.config)
    old, here = (configs.to_dict(stored.with_parts(one, {})) for one in (defaults, config))
    found = {key: new for key, (_, new) in configs.differences(old, here).items() if key != "run_dir"}
    return found if robot.parts is None else {**found, **robot.parts.differs(getattr(defaults, "parts", {}))}


def _data(config: ExperimentConfig) -> dict[str, str]:
    """Return the sha256 of the recorded rows that a robot of this configuration, which was built here, learns from, by name or
    path."""
    from parl_like.agents import offline  # with torch, which a robot of another make does without

    read = {name: offline.sha256_of(recorded.directory_of(name)) for name in recorded.named_in(getattr(config, "parts", {}))}
    return {name: digest for name, digest in read.items() if digest}


def _choose(run: RunDir, checkpoints: Checkpoints, which: str) -> str | Path:
    """The checkpoint `latest`, `best`, `exact`, or of a step, as `Checkpoints.load` takes it. Raises UsageError."""
    if checkpoints.latest() is None and not (which == "best" and checkpoints.evaluated_best()):
        info = run.info()
        word = f"{info.source.file}:{info.experiment}" if info.source is not None and info.source.file else info.experiment
        raise UsageError(f"{run.path} has no checkpoint yet; start a new run with `parl-like train {shlex.quote(word)}`")
    if which in ("latest", "best", "newest", "exact"):
        return which
    if not which.isascii() or not which.isdigit():
        raise UsageError(f"checkpoint {which!r}: expected latest, best, or an env step")
    if int(which) not in checkpoints.steps():
        has = ", ".join(map(str, checkpoints.steps())) or "none"
        raise UsageError(f"{run.path} has no checkpoint of step {int(which)}; it has {has}")
    return run.checkpoints / f"{int(which):09d}"

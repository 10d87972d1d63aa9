"""Followers: hooks that hand the numbers of a run to Weights & Biases, Trackio or MLflow.

All of them write to local files, and send nothing unless `mode="online"` says so. None of them takes a key: the services have
their own places for keys, and so no run directory has one.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import math
import os
import re
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from parl_like.environment.hooks import Hook
from parl_like.interfaces import AgentPort, UsersRobot
from parl_like.lab.config import flat
from parl_like.lab.runs.rundir import State
from parl_like.lab.text import escaped

Mode = Literal["offline", "online"]

LONGEST = 500  # characters of a value that MLflow takes as a parameter
AT_ONCE = 100  # parameters that it takes in a call

_LOG = logging.getLogger("parl_like.lab")


class Facts(NamedTuple):
    """A run, as a service gets to know it: its name, one that no other run has, its settings, and its directory, if any."""

    name: str
    id: str
    settings: Mapping[str, Any]
    folder: Path | None


class Follower(Hook):
    """Hands numbers of a run to a service. A robot that runs in a run directory hands over the rows of `metrics.csv`, evaluations
    included; one of a script its metrics and counters, every so many steps and after each run.

    What goes wrong in it is a warning, and the end of the following, never that of the run.

    Args:
        mode: `offline`: into local files. `online`: the service gets it.
        every: Environment steps between two rows of a script.

    Raises:
        ValueError: `mode` is another one, or `every` is below 1.
    """

    outward = True  # a stranger's run directory may not ask for it, see `parl_like.lab.foreign`
    counts_only, calls = True, 0  # it calls nothing of the user's
    package = ""
    """The service's package, and the extra of parl_like that brings it."""

    def __init__(self, mode: Mode = "offline", every: int = 1_000) -> None:
        name = type(self).__name__
        if mode not in ("offline", "online"):
            raise ValueError(f"{name}: mode is {mode!r}; expected 'offline' or 'online'")
        if every < 1:
            raise ValueError(f"{name}: every is {every}; expected at least 1 step")
        self.mode, self.every = mode, every
        self._state: Literal["new", "open", "ended"] = "new"
        self._fed, self._next = False, 0
        self._end: weakref.finalize[Any, Any] | None = None

    @abstractmethod
    def begin(self, facts: Facts) -> Callable[[State], object]:
        """Tell the service of the run; return what tells it of the end."""

    @abstractmethod
    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Hand over a row: finite numbers by name, `step` in environment steps."""

    def check(self) -> None:
        """Raises ImportError where the service's package is missing; it names the extra."""
        if self.package and importlib.util.find_spec(self.package) is None:
            raise ImportError(f"{type(self).__name__} needs {self.package}; install the extra: "
                              f"pip install 'parl_like[{self.package}]'")

    # ------------------------------------------------------------------------------------------------ of a run directory

    def follow(self, facts: Facts) -> None:
        """Begin to follow a run whose rows come through `write`."""
        self._fed = True
        self._open(facts)

    def write(self, row: Mapping[str, float]) -> None:
        """Hand over a row, with its `step`."""
        if self._state == "open":
            numbers = {key: float(value) for key, value in row.items() if key != "step" and math.isfinite(value)}
            self._tried(self.send, int(row["step"]), numbers)

    def close(self, state: State = "finished") -> None:
        """End the following; the service hears how the run has ended. May be called twice."""
        if self._state == "open" and self._end is not None:
            self._end.detach()
            atexit.unregister(self._end)
            self._tried(self._ends, state)
        self._state = "ended"

    def _open(self, facts: Facts) -> None:
        if self._state == "new":
            self._state = "open"
            if (ends := self._tried(self.begin, facts)) is not None:
                self._ends = ends
                self._end = weakref.finalize(self, ends, "finished")  # where nobody calls `close`
                self._end.atexit = False
                atexit.register(self._end)  # at the end of the process before the service ends, which has just begun

    def _tried(self, call: Callable[..., Any], *args: object) -> Any:
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001  whatever a service raises, a run of hours does not end because of it
            self._state = "ended"
            _LOG.warning("%s follows no longer: %s: %s", type(self).__name__, type(error).__name__, escaped(str(error))[:500])
            return None

    # ------------------------------------------------------------------------------------------------ of a script

    def pre_experiment(self, robot: UsersRobot) -> None:
        """Begin to follow the robot of a script. Raises ImportError: the package is missing."""
        if not self._fed:
            self.check()
            parts = getattr(robot, "parts", None)
            settings = {} if parts is None else parts.complete()
            now = time.strftime("%Y%m%d-%H%M%S")
            self._open(Facts(f"run {now}", f"{now}-{os.urandom(3).hex()}", {"seed": robot.seed, **settings}, None))
            self._next = robot.env_steps + self.every

    def post_act(self, agent: AgentPort) -> None:
        if not self._fed and agent.robot.env_steps >= self._next:
            self._next += self.every
            self._row(agent.robot)

    def post_experiment(self, robot: UsersRobot) -> None:
        if not self._fed:
            self._row(robot)

    def _row(self, robot: UsersRobot) -> None:
        self.write({"step": robot.env_steps, **robot.metrics(), **robot.counters()})


@contextmanager
def _without(prefix: str, keep: str) -> Iterator[None]:
    """Hide variables of the environment: each of them may send a run somewhere, and nobody has asked for that here."""
    hidden = {key: os.environ.pop(key) for key in list(os.environ) if key.startswith(prefix) and key != keep}
    try:
        yield
    finally:
        os.environ.update(hidden)


class WandbHook(Follower):
    """Follows a run with Weights & Biases; offline in `wandb/` of the run directory (of a script: of `folder`), to be sent later
    with `wandb sync`, or never. Its key is where `wandb login` puts it, or in `WANDB_API_KEY`.

    Args:
        project, entity: Of W&B; no entity: that of the key.
        folder: Of a script: where `wandb/` is.
        mode, every: See `Follower`.
    """

    package = "wandb"

    def __init__(self, project: str = "parl_like", entity: str = "", folder: str = ".", mode: Mode = "offline",
                 every: int = 1_000) -> None:
        super().__init__(mode, every)
        self.project, self.entity, self.folder = project, entity, folder

    def begin(self, facts: Facts) -> Callable[[State], object]:
        if self.mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = importlib.import_module("wandb")
        # Neither the command line, nor the address of a repository, nor sources: all of these may hold what is nobody's business.
        settings = wandb.Settings(console="off", silent=True, save_code=False, disable_git=True, disable_code=True,
                                  x_disable_meta=True, x_disable_machine_info=True)
        self._run = wandb.init(project=self.project, entity=self.entity or None, name=facts.name, id=facts.id, resume="allow",
                               config=dict(facts.settings), mode=self.mode, settings=settings,
                               dir=str(facts.folder or self.folder))
        run = self._run
        run.define_metric("env_steps")
        run.define_metric("*", step_metric="env_steps")  # W&B's own steps only rise, and a run may go back to a checkpoint
        return lambda state: run.finish(exit_code=int(state == "failed"))

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "env_steps": step})


class TrackioHook(Follower):
    """Follows a run with Trackio, in its local database (`TRACKIO_DIR`), to be seen by `trackio show`.

    Args:
        project: Of Trackio.
        space: Online: the Hugging Face Space that gets it, `user/name`. Its token is Hugging Face's own.
        mode, every: See `Follower`.

    Raises:
        ValueError: a space is given offline, or none online.
    """

    package = "trackio"

    def __init__(self, project: str = "parl_like", space: str = "", mode: Mode = "offline", every: int = 1_000) -> None:
        super().__init__(mode, every)
        if bool(space) is not (mode == "online"):
            raise ValueError(f"TrackioHook: space is {space!r} and mode {mode!r}; expected a space with mode='online' alone")
        self.project, self.space = project, space

    def begin(self, facts: Facts) -> Callable[[State], object]:
        with _without("TRACKIO_", "TRACKIO_DIR"):
            trackio = importlib.import_module("trackio")
            self._run = trackio.init(project=self.project, name=facts.id, config=dict(facts.settings), resume="allow",
                                     embed=False, space_id=self.space or None, auto_log_gpu=False, auto_log_cpu=False)
        run = self._run
        return lambda state: run.finish()

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)


class MLflowHook(Follower):
    """Follows a run with MLflow; offline in `mlruns/` of the run directory (of a script: of the working directory), to be seen by
    `mlflow ui`.

    Args:
        experiment: Of MLflow.
        uri: Online: the address of the tracking server; empty: that of `MLFLOW_TRACKING_URI`. Name and password are MLflow's own
            (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`), and no part of it.
        mode, every: See `Follower`.

    Raises:
        ValueError: an address is given offline, or one with a name or password in it.
    """

    package = "mlflow"

    def __init__(self, experiment: str = "parl_like", uri: str = "", mode: Mode = "offline", every: int = 1_000) -> None:
        super().__init__(mode, every)
        if uri and mode == "offline":
            raise ValueError("MLflowHook: uri is where numbers are sent, and mode is 'offline'; give mode='online', or no uri")
        if "@" in urlsplit(uri).netloc:
            raise ValueError("MLflowHook: uri has a name or a password in it, which would be kept in the run directory; put them "
                             "into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
        self.experiment, self.uri = experiment, uri

    def begin(self, facts: Facts) -> Callable[[State], object]:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri: str | None = self.uri or None  # None: MLflow's own variable
        if self.mode == "offline":
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # plain files, for the small package has no database
            uri = ((facts.folder or Path(".")).resolve() / "mlruns").as_uri()
        client = self._client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        entities = importlib.import_module("mlflow.entities")
        self._metric = entities.Metric
        known = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if known is None else known.experiment_id
        self._id = run_id = client.create_run(number, run_name=facts.name, tags={"parl_like.id": facts.id}).info.run_id
        settings = [entities.Param(_mlflow_name(key), str(value)[:LONGEST]) for key, value in flat(facts.settings).items()]
        for first in range(0, len(settings), AT_ONCE):
            client.log_batch(run_id, params=settings[first : first + AT_ONCE])
        ends = {"stopped": "KILLED", "failed": "FAILED"}
        return lambda state: client.set_terminated(run_id, ends.get(state, "FINISHED"))

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_mlflow_name(key), value, now, step) for key, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)


def _mlflow_name(key: str) -> str:
    """Return a name as MLflow takes it."""
    return re.sub(r"[^\w\-./: ]", "_", key)[:250]


def followers_of(robot: UsersRobot) -> list[Follower]:
    """Return those among the hooks that belong to a robot."""
    with suppress(AttributeError):  # a robot of another make
        return [hook for hook in robot.pool.hooks.own if isinstance(hook, Follower)]
    return []

"""Experiments: named, reproducible runs with the outcome that is expected of them, and the registry that finds them."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import msgspec

from parl_like.lab.yaml_text import ConfigError, Tree, UsageError, load_yaml_file
from parl_like.values.errors import unknown

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z")]
# No dot and no slash: a name can only ever lead to a module directly below parl_like.robots.
RobotName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]


class ExperimentError(UsageError):
    """No such experiment, or its description or its robot module is not what it must be."""


ENTRY_POINTS = "parl_like.experiments"
"""Group of entry points of installed packages: name of an experiment → module that registers it."""


class ExperimentSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file that registered a user's experiment, by real path and SHA-256 of its content; or the module."""

    file: str = ""
    sha256: str = ""
    module: str = ""


class Brought(NamedTuple):
    """A module of the user's with experiments, and their names; `source` None: an installed package's, found by its name."""

    module: ModuleType
    source: ExperimentSource | None
    names: list[str]


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The interval in which a result must lie. None: open."""

    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a result lies in it; NaN does not."""
        low = -math.inf if self.at_least is None else self.at_least
        return low <= value <= (math.inf if self.at_most is None else self.at_most)


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A robot's configuration with a name, and what should come out of its run.

    Attributes:
        name: What one types; lower-case letters, digits, `-` and `_`. Of a YAML file: its name without `.yaml`.
        robot: Module below `parl_like.robots` that offers `Config`, an ExperimentConfig, and `build(config) -> Robot`.
        description: One line for `parl-like list`.
        expect: Result → the number that it must reach, or `{at_least: …, at_most: …}`. Results are those of the evaluation
            (`mean_return` …), then the robot's last metrics. The key `episodes` is no result: it says over how many episodes.
        config: Values that differ from the defaults of the robot's `Config`.
    """

    name: Name
    robot: RobotName
    description: str = ""
    expect: dict[str, float | Bounds] = {}
    config: Tree = {}

    @property
    def eval_episodes(self) -> int:
        """Episodes that the expectation asks for; 0 where it does not say."""
        episodes = self.expect.get("episodes", 0)
        return int(episodes) if isinstance(episodes, (int, float)) else 0

    @property
    def bounds(self) -> dict[str, Bounds]:
        """Result → interval."""
        out = {key: value for key, value in self.expect.items() if key != "episodes"}
        return {key: value if isinstance(value, Bounds) else Bounds(at_least=value) for key, value in out.items()}

    def verdict(self, results: Mapping[str, float]) -> bool | None:
        """Return whether every expected result lies in its interval; one that is missing does not. None: nothing is expected."""
        wanted = self.bounds
        return all(one.holds(results.get(key, math.nan)) for key, one in wanted.items()) if wanted else None

    def module(self) -> ModuleType:
        """Return the robot's module, imported now: this is what loads torch.

        Raises:
            ExperimentError: there is no such robot.
        """
        module = _modules.get(self.name)
        if module is None:
            path = f"parl_like.robots.{self.robot}"
            try:
                module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise  # the robot exists; something that it needs does not
                found = [path for folder in _robots_folders() for path in folder.glob("[a-z]*")]
                known = [path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()]
                raise ExperimentError(f"experiment {self.name!r}: {unknown('robot', self.robot, known)}") from None
        for attribute in ("Config", "build"):
            if not hasattr(module, attribute):
                raise ExperimentError(f"experiment {self.name!r}: {module.__name__} has no {attribute!r}; a robot module offers "
                                      "`Config`, an ExperimentConfig class, and `build(config) -> Robot`")
        return module


_registered: dict[str, Experiment] = {}
_modules: dict[str, ModuleType] = {}
_brought: dict[str, Brought] = {}


_NAMES = {"name": (Name, "lower-case letters, digits, - and _, at most 64, the first a letter or digit"),
         "robot": (RobotName, "the name of a module below parl_like.robots: lower-case letters, digits and _, at most 64, the "
                              "first a letter; parts of your own are named as module:Name in `config`")}
"""Field of an experiment → its type, and what it may be, in words."""


def _in_words(given: Mapping[str, object], said: str) -> str:
    """The refusal of an experiment; where a name has other characters, which it may have instead of a pattern."""
    for field, (kind, words) in _NAMES.items():
        try:
            msgspec.convert(value := given.get(field, "x"), kind)
        except msgspec.ValidationError:
            return f"{field} is {value!r:.80}; expected {words}"
    return said


def register(experiment: Experiment, module: ModuleType | None = None) -> Experiment:
    """Makes an experiment known by its name in this process.

    `module` has its `Config` and `build`; None: `parl_like.robots.<robot>`. A script passes `sys.modules[__name__]`. Raises
    ExperimentError where the name is taken, or the description is malformed.
    """
    try:
        msgspec.convert(msgspec.to_builtins(experiment), Experiment)  # a Struct's own constructor checks nothing
    except (msgspec.ValidationError, TypeError) as error:
        said = _in_words(msgspec.structs.asdict(experiment), str(error))
        raise ExperimentError(f"experiment {experiment.name!r}: {said}") from None
    if experiment.name in _files() or _registered.get(experiment.name, experiment) != experiment:
        raise ExperimentError(f"experiment {experiment.name!r} exists already; choose another name")
    _registered[experiment.name] = experiment
    if module is not None:
        _modules[experiment.name] = module
    return experiment


def bring(load: Callable[[], ModuleType], source: ExperimentSource | None) -> list[str]:
    """Imports a module of the user's; the names of the experiments that it registers."""
    before = set(_registered)
    module = load()
    if module.__name__ not in _brought:
        names = [name for name in _registered if name not in before or _modules.get(name) is module]
        _brought[module.__name__] = Brought(module, source, names)
    return _brought[module.__name__].names


def brought() -> Mapping[str, Brought]:
    """Module name → what `bring` has imported in this process."""
    return _brought


def source_of(name: str) -> ExperimentSource | None:
    """Return what an experiment was registered by; None: it is ours, or an installed package's, or a script's of this process."""
    return next((one.source for one in _brought.values() if name in one.names), None)


def is_registered(name: str) -> bool:
    """Return whether this process knows an experiment that is not ours."""
    return name in _registered


def users_modules() -> list[ModuleType]:
    """Modules of the user's with experiments that this process knows of."""
    return [*(one.module for one in _brought.values()), *_modules.values()]


def installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Experiments that installed packages bring."""
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def names() -> list[str]:
    """All experiments, sorted."""
    return sorted({*_files(), *installed(), *_registered})


def is_known(name: str) -> bool:
    """Return whether an experiment has this name; nothing is imported for it."""
    return name in _registered or name in _files() or name in installed()


def get(name: str) -> Experiment:
    """Return the experiment of this name; that of an installed package is imported.

    Raises:
        ExperimentError: there is none; the nearest name is given. ConfigError: its description is bad.
    """
    if name in _registered:
        return _registered[name]
    files = _files()
    if name not in files:
        if (point := installed().get(name)) is None:
            raise ExperimentError(unknown("experiment", name, names()))
        bring(lambda: importlib.import_module(point.module), None)
        if name not in _registered:
            raise ExperimentError(f"experiment {name!r}: {point.module} is its entry point, but does not register it")
        return _registered[name]
    tree = load_yaml_file(Path(files[name]))
    try:
        experiment = msgspec.convert({"name": name, **tree}, Experiment)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{files[name]}: {_in_words(tree, str(error))}") from None
    if experiment.name != name:
        mend = "name the file and the experiment alike"
        raise ConfigError(f"{files[name]}: expected name {name!r}, got {experiment.name!r}; {mend}")
    return experiment


def _robots_folders() -> list[Path]:
    # find_spec imports only the parent package, so a listing does not load torch.
    spec = importlib.util.find_spec("parl_like.robots")
    return [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]


def _files() -> dict[str, str]:
    folders = [os.path.join(folder, "experiments") for folder in _robots_folders()]
    return {name.removesuffix(".yaml"): os.path.join(folder, name) for folder in folders if os.path.isdir(folder)
            for name in sorted(os.listdir(folder)) if name.endswith(".yaml")}

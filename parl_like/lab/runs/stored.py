"""From a run directory to a configuration that a robot is built of.

The directory may come from somebody else. What its texts may name, `parl_like.lab.foreign` says. What its configuration has of
machines counts only where the user has said it, too: when the run is looked at there is no driver, and when it goes on, the
user has typed these options again or has run this very configuration before (`user_experiments.has_run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from parl_like.lab import config as configs
from parl_like.lab import user_experiments, yaml_text
from parl_like.lab.config import ExperimentConfig, Workers
from parl_like.lab.experiment import Experiment
from parl_like.lab.foreign import Foreign
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import ConfigError

RESUMABLE = frozenset({
    "total_steps", "device", "keep_checkpoints", "checkpoint_buffers", "log_every_s", "eval_every", "eval_episodes",
    "eval_process", "stop_score", "tensorboard",
    *(f"workers.{name}" for name in ("address", "num_cpus", "start_limit", "step_limit", "memory_limit", "max_restarts",
                                     "period")),
})
"""Settings that may differ when a run is continued: nothing here changes what happens at a step of training, but that another
device rounds otherwise."""
EVALUABLE = RESUMABLE | {"eval_score", "torch_threads"}
"""Settings that may differ when it is evaluated."""

MACHINES = ("driver", "workers")
"""Keys that say where agents and tasks run, and what they take there."""
ROWS = "data"
"""The end of keys that say where recorded rows are: they may have moved, for a checkpoint knows their hash."""
HERE = ("cooperative", "threads")
"""Drivers that stay in this process."""


class Stored(NamedTuple):
    """The content of a run directory: its experiment, its configuration as it stands there, and with what the user gives anew."""

    experiment: Experiment
    kept: ExperimentConfig
    config: ExperimentConfig


@contextmanager
def to_look_at(run: RunDir, overrides: Mapping[str, object] | None, source: str) -> Iterator[tuple[Experiment, ExperimentConfig]]:
    """Yield what `eval`, `play` and `load_run` build while this lasts: always in this process, whatever driver the run had; on
    the CPU where it had a GPU and there is none here.

    Args:
        overrides, source: As for `parl_like.lab.runner.resume`.

    Raises:
        UsageError: the directory is none, or its configuration does not fit.
    """
    with _stored(run, overrides or {}, source, EVALUABLE) as ((experiment, _, config), _):
        yield experiment, msgspec.structs.replace(config, driver="cooperative", workers=Workers(), device=_here(config.device))


def _here(device: str) -> str:
    import torch  # whoever looks at a run needs it in a moment

    return "cpu" if device.partition(":")[0] == "cuda" and not torch.cuda.is_available() else device


@contextmanager
def to_resume(run: RunDir, overrides: Mapping[str, object] | None, source: str) -> Iterator[Stored]:
    """Yield what `resume` builds and trains while this lasts, on the machines that the user has named. As `to_look_at`."""
    with _stored(run, overrides or {}, source, RESUMABLE) as (found, ran):
        if not ran:
            _check_machines(run, found, overrides or {})
        yield found


def remember(run: RunDir) -> None:
    """Remember that the user has run this, and need not type again what the configuration says of machines and to others'
    code."""
    user_experiments.remember_run(run.read("config.yaml"))


def _chosen(said: ExperimentConfig, config: ExperimentConfig) -> dict[str, object]:
    """Key → value of what a configuration has of machines, and nobody has said; a driver that stays in this process is none."""
    old, new = ({key: configs.to_dict(one)[key] for key in MACHINES} for one in (said, config))
    found = configs.differences(old, new).items()
    return {key: value for key, (_, value) in found if key != "driver" or value not in HERE}


def _check_machines(run: RunDir, found: Stored, overrides: Mapping[str, object]) -> None:
    def named(layer: Mapping[str, object]) -> dict[str, object]:
        return {key: value for key, value in layer.items() if key.partition(".")[0] in MACHINES}

    said = configs.resolve(ExperimentConfig, named(found.experiment.config), named(overrides))
    words = " ".join(f"{key}={yaml_text.show(value)}" for key, value in _chosen(said, found.config).items())
    if words:
        raise ConfigError(f"{run.config_file}: {words}: machines and what is taken there, which a run directory may not choose; "
                          f"if you trust it, give {words} again")


def refuse_changes(old: Mapping[str, object], new: Mapping[str, object], why: str, free: Set[str] = RESUMABLE) -> None:
    """Raises ConfigError where two configurations differ in more than the keys of `free`, and where recorded rows are."""
    # A key that `old` lacks is one that the code learned since; it came with its default.
    found = configs.differences(old, new).items()
    changes = {key: change for key, change in found if key in free or key.split(".")[0] in old}
    refused = [f"{key!r} is {a!r} there and {b!r} now" for key, (a, b) in changes.items()
               if key not in free and key.rpartition(".")[2] != ROWS]
    if refused:
        raise ConfigError(f"{why}: {'; '.join(refused)}; only {', '.join(sorted(free))} may change; for "
                          "another configuration train a new run")


def with_parts(config: Any, parts: Mapping[str, object]) -> Any:
    """The configuration with these settings of what the robot is built of, if it has such."""
    return msgspec.structs.replace(config, parts=dict(parts)) if hasattr(config, "parts") else config


@contextmanager
def _stored(run: RunDir, overrides: Mapping[str, object], source: str, free: Set[str]) -> Iterator[tuple[Stored, bool]]:
    """With whether the user has run this configuration before; its rule is in force meanwhile."""
    info = run.info()
    experiment = user_experiments.of_run(run.path, info.experiment, info.source, source)
    config_class: type[ExperimentConfig] = experiment.module().Config
    tree, ran = run.config(), user_experiments.has_run(run.read("config.yaml"))
    with Foreign(run.config_file, tree, [overrides, experiment.config], ran, free == EVALUABLE).in_force():
        there = configs.resolve(config_class, tree)
        stored = configs.to_dict(there)
        config: Any = configs.resolve(config_class, tree, overrides)
        if kept := getattr(there, "parts", {}):
            if "robot" not in stored:
                raise ConfigError(f"{run.config_file} has {', '.join(list(kept)[:3])}, but no `robot`, which says what each "
                                  "setting belongs to; put the file back as the run wrote it")
            parts = dict(config.parts)
            for key in parts.keys() - kept.keys():
                was = {name: value for name, value in kept.items() if configs.ends_with(name, key) == ""}
                if key.rpartition(".")[2] == ROWS and len(was) == 1:
                    parts |= dict.fromkeys(was, parts[key])
                elif [*was.values()] != [parts[key]]:
                    there_is = " or ".join(map(repr, was.values())) or "nothing"
                    raise ConfigError(f"a run keeps its configuration: {key!r} is {there_is} there and {parts[key]!r} now; for "
                                      "another configuration train a new run")
            config = with_parts(config, {name: parts[name] for name in kept})
        refuse_changes(stored, configs.to_dict(config), "a run keeps its configuration", free)
        yield Stored(experiment, there, config), ran

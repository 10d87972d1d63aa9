"""Recorded data sets: what each is, where it is from, and those that shipped experiments learn from by name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.datasets import rows_hash
from parl_like.data.storage.archive import read_manifest
from parl_like.data.storage.tree_encoding import ArchiveError
from parl_like.lab.experiment import Name
from parl_like.lab.yaml_text import ConfigError, Tree, load_yaml_file

DATA_DIR = "data"
"""The directory, below the working one, of data sets that have a name."""

Policy = Literal["expert", "medium", "replay", "random"]
POLICIES = get_args(Policy)


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The origin of a data set, as its manifest says.

    Attributes:
        policy: Who acted, see `parl_like.lab.recording.record`.
        experiment, differs, seed, step: The run, what in it differs from its experiment, its seed, and the env step of the
            checkpoint that acted, or whose replay this is. env: The id of the environment.
        episodes, rows, mean_return, std_return: What was recorded; returns are undiscounted.
        random_return, expert_return: Mean returns of random actions and of the run's own policy at its end; between them scores
            are normalised, see `normalized`.
        sha256: Of the rows, `parl_like.data.datasets.rows_hash`.
        versions, commit: Of the packages and the source that recorded it.
    """

    policy: Policy
    experiment: str
    differs: Tree
    seed: int
    step: int
    env: str
    episodes: int
    rows: int
    mean_return: float
    std_return: float
    random_return: float
    expert_return: float
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    versions: dict[str, str]
    commit: str

    @property
    def reference(self) -> tuple[float, float]:
        """The mean returns that count as 0 and as 100."""
        return self.random_return, self.expert_return


class DataRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The making of a data set with a name: the run that plays, and the arguments of `record`."""

    experiment: Name
    policy: Policy
    episodes: Annotated[int, msgspec.Meta(ge=1)]
    seed: int = 0
    config: dict[str, Any] = {}


def recipes() -> dict[str, DataRecipe]:
    """Name → recipe, of the data sets that shipped experiments learn from."""
    spec = importlib.util.find_spec("parl_like.robots")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]
    found: dict[str, DataRecipe] = {}
    for path in (folder / "datasets.yaml" for folder in folders):
        found |= msgspec.convert(load_yaml_file(path), dict[Name, DataRecipe])
    return found


def directory_of(data: str) -> str:
    """Return where a data set is: a path as it is; of a name of `recipes`, the directory below `data/`.

    Raises:
        ConfigError: one with a name is not there yet.
    """
    if os.path.exists(data) or data not in recipes():
        return data
    path = os.path.join(DATA_DIR, data)
    if not os.path.isdir(path):
        raise ConfigError(f"the data set {data!r} is not in {path}; make it with `parl-like record {data}`, which trains "
                          f"{recipes()[data].experiment} where that is needed")
    return path


def named_in(settings: Mapping[str, object]) -> list[str]:
    """Return the data sets among the settings of a robot (`data: cartpole-replay`), names and paths."""
    return sorted({value for key, value in settings.items() if key.rpartition(".")[2] == "data" and isinstance(value, str)})


def missing(settings: Mapping[str, object]) -> list[str]:
    """Return the names of data sets among the settings of a robot that have to be made first."""
    return [name for name in named_in(settings) if name in recipes()
            and not os.path.exists(name) and not os.path.isdir(os.path.join(DATA_DIR, name))]


def hashes(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the sha256 of the rows of each data set among the settings of a robot that is there, by its name or path.

    Raises:
        ArchiveError: one is damaged.
    """
    there = {name: directory_of(name) for name in named_in(settings) if name not in missing(settings)}
    return {name: rows_hash(ReplayBuffer.load(path)) for name, path in there.items() if os.path.isdir(path)}


def provenance_of(path: str | Path) -> Provenance | None:
    """Return what the manifest of a data set says; None: nobody recorded it by `parl-like record`, or it is no directory.

    Raises:
        ArchiveError: the manifest is damaged.
    """
    if not os.path.isdir(path):
        return None
    found = read_manifest(Path(path)).meta.get("provenance")
    try:
        return None if found is None else msgspec.convert(found, Provenance)
    except msgspec.ValidationError as error:
        raise ArchiveError(f"{path}: its provenance is not what `parl-like record` writes ({error}); record it again") from None

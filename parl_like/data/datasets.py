"""Fixed data as a ReplayBuffer and back: arrays in time order, and Minari datasets (extra `minari`). For offline learning.

Outside, in arrays and data sets, actions are the environment's: torque 0.8, choices from the space's `start`. In buffers they are
the policy's, as soon as a buffer knows of which action space (`buffer.act_space`): numbers of a bounded Box in [−1, 1], choices
from 0. `parl_like.values.action_codec` converts both ways.
"""

from __future__ import annotations

import hashlib
import importlib
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer
from parl_like.data.buffers.fields import FLAGS, as_array, in_units, is_part
from parl_like.data.buffers.given_rows import OWNER
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.values.env_ids import make
from parl_like.values.spec import Array, Spec, SpecError, as_space, leaves, nest, specs_of


def from_arrays(
    obs: object, act: object, rew: object, terminated: object, *, truncated: object = None,
    obs_next: object = None, action_space: gym.Space[object] | None = None, size: int | None = None, **more: object
) -> ReplayBuffer:
    """A buffer of rows in time order, all in one lane.

    Where `obs_next` is not given, it is obs of the next row, and at a terminated row, where nothing is to be bootstrapped from,
    obs itself. What a truncated row led to, or the last one of all, is not known then: such a row is left out, and the row before
    it, which is known to lead there, is truncated instead. So nothing is bootstrapped from a wrong observation; it costs one row
    of each such episode, and a warning counts them.

    Args:
        obs, act: Arrays [N, …] of numbers, or nested dicts and tuples of such; actions as the environment takes them.
        rew: [N] or [N, …], stored as float64, which is what the agents' helpers ask for.
        terminated, truncated: [N] bool, or 0 and 1; no `truncated`: none is.
        obs_next: As obs: what the row led to, at an episode's end the true final observation.
        action_space: The environment's. With it the buffer holds the policy's actions; without it those given, and an
            `OfflineHelper` converts them by the action space of its model.
        size: Of the buffer; None: N. If it is less than N, the oldest rows are gone.
        more: Other fields, [N, …]: `info={"x": …}` …

    Raises:
        ValueError: no rows. SpecError: another length, no numbers, NaN (with the row), flags that are none, an obs_next that is
            not built as obs, or actions that are not of `action_space`.
    """
    given = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "obs_next": obs_next, **more}
    flat = {name: _column(name, value) for key, part in given.items() if part is not None for name, value in leaves(part, key)}
    n = len(flat["terminated"]) if "terminated" in flat else 0
    if not n:
        raise ValueError("from_arrays: 'terminated' has no rows; expected a flag for each row, and at least one row")
    flat.setdefault("truncated", np.zeros(n, bool))
    for name, column in flat.items():
        if len(column) != n:
            raise _error(name, column, f"{n} rows, as 'terminated' has", "give one row per step")
        if column.dtype.kind == "f" and np.isnan(column).any():
            raise _error(name, column, f"NaN in row {int(np.argwhere(np.isnan(column))[0][0])}", "leave its episode out",
                         got=True)
    for name in FLAGS:
        if flat[name].ndim != 1 or not np.isin(flat[name], (0, 1)).all():
            raise _error(name, flat[name], "one flag per row", "give [N] bool, or 0 and 1")
        flat[name] = flat[name].astype(bool)
    flat["rew"] = flat["rew"].astype(np.float64)
    own = {name: flat[name] for name in flat if is_part(name, "obs")}
    if obs_next is None:
        flat = _with_next(flat, own)
    for name, column in own.items():
        after = flat.pop("obs_next" + name[3:], None)
        if after is None or after.shape[1:] != column.shape[1:]:
            raise _error("obs_next" + name[3:], after, f"[N, …] like {name!r}, {column.shape}",
                         "give what each row led to, or no obs_next")
        flat["obs_next" + name[3:]] = after.astype(column.dtype, casting="same_kind", copy=False)
    if not len(flat["terminated"]):
        raise ValueError("from_arrays: no row is left whose next observation is known; give obs_next")
    buffer = ReplayBuffer(len(flat["terminated"]) if size is None else size)
    flat, buffer.act_space = in_units(flat, None, action_space, "from_arrays"), action_space
    buffer.allocate([Spec(name, column.shape[1:], column.dtype, owner=OWNER) for name, column in flat.items()])
    buffer.push_rows(np.zeros(len(flat["terminated"]), np.int64), tuple(flat.values()))
    return buffer


def to_arrays(buffer: ReplayBuffer | EpisodeBuffer | CachedReplayBuffer) -> dict[str, Any]:
    """All rows in time order, lane after lane, as nested dicts of arrays [N, …]: copies, which `from_arrays(**…)` takes back.

    Actions are the environment's, as it took them: inside the bounds. (`buffer[:]` has the policy's.) Frames are stacked and
    obs_next is looked up. The newest row of a lane is truncated if its episode is not over, for the row after it here is of
    another lane. Of an EpisodeBuffer and a CachedReplayBuffer these are the rows of finished episodes.

    Raises:
        TypeError: a buffer without time order.
    """
    if not isinstance(buffer, (ReplayBuffer, EpisodeBuffer, CachedReplayBuffer)):
        raise TypeError(f"to_arrays: {buffer!r} keeps single rows in no order; give a ReplayBuffer, or take buffer[:]")
    names = [spec.name for spec in buffer.specs]
    if isinstance(buffer, EpisodeBuffer):
        whole = buffer[:].leaves()
        flat = {name: whole[name] for name in names}
    else:
        rows = buffer.sample_indices(0)
        flat = buffer.gather(rows, names=names)
        flat["truncated"][np.isin(rows, buffer.unfinished_index())] = True
    return nest(in_units(flat, buffer.act_space, None, repr(buffer)))


def from_minari(dataset: Any, *, size: int | None = None) -> ReplayBuffer:
    """A buffer of a Minari dataset: T rows of an episode of T + 1 observations, each with its true obs_next, and with the
    policy's actions of the dataset's action space.

    An episode that neither terminates nor is truncated in the data is truncated here, since the row after it is of another one.

    Args:
        dataset: A `minari.MinariDataset`, or the id of one on this machine (nothing is downloaded).
        size: As for `from_arrays`.

    Raises:
        ImportError: minari is missing. TypeError: spaces without a fixed shape. ValueError, SpecError: an episode that does not
            fit its spaces or lengths, and as `from_arrays`.
    """
    if isinstance(dataset, str):
        dataset = _minari().load_dataset(dataset)
    return from_episodes(dataset.iterate_episodes(), dataset.observation_space, dataset.action_space, size=size,
                         source="from_minari")


def from_episodes(episodes: Iterable[Any], observation_space: gym.Space[object], action_space: gym.Space[object], *,
                  size: int | None = None, source: str = "from_episodes") -> ReplayBuffer:
    """A buffer of episodes as Minari has them: `id`, `observations` of T + 1 steps, `actions`, `rewards`, `terminations` and
    `truncations` of T, nested as their spaces are.

    Args:
        size: As for `from_arrays`. source: Who asks, for messages.

    Raises:
        ValueError: no steps, and as `from_arrays`. TypeError, SpecError: an episode that does not fit its spaces or lengths.
    """
    specs = specs_of(observation_space, "obs") | specs_of(action_space, "act")
    parts: dict[str, list[Array]] = {}
    for episode in episodes:
        n = len(episode.rewards)
        if not n:
            continue
        owner = f"{source}, episode {episode.id}"
        obs = _of_spaces(owner, episode.observations, "obs", specs)
        rows = _of_spaces(owner, episode.actions, "act", specs)
        rows |= {name: column[:-1] for name, column in obs.items()}
        rows |= {f"obs_next{name[3:]}": column[1:] for name, column in obs.items()}
        terminated, truncated = np.array(episode.terminations, bool), np.array(episode.truncations, bool)
        truncated[-1:] |= ~terminated[-1:]
        rows |= {"rew": np.asarray(episode.rewards), "terminated": terminated, "truncated": truncated}
        for name, column in rows.items():
            if len(column) != n:
                raise ValueError(f"{owner}: {name!r} has {len(column)} rows; expected {n}, as there are rewards")
            parts.setdefault(name, []).append(column)
    if not parts:
        raise ValueError(f"{source}: the dataset has no steps; give one with episodes")
    rows = nest({name: np.concatenate(columns) for name, columns in parts.items()})
    return from_arrays(**rows, action_space=action_space, size=size)


def rows_hash(buffer: ReplayBuffer | EpisodeBuffer | CachedReplayBuffer) -> str:
    """Return the sha256 of all rows as `to_arrays` gives them: names, dtypes, shapes and bytes of the fields, by name. So it is
    the same for the same data in any format."""
    digest = hashlib.sha256()
    for name, column in sorted(leaves(to_arrays(buffer), "")):
        digest.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def to_minari(
    buffer: ReplayBuffer | EpisodeBuffer | CachedReplayBuffer, dataset_id: str, *, env: Any = None,
    observation_space: gym.Space[object] | None = None,
    action_space: gym.Space[object] | None = None, **metadata: object,
) -> Any:  # fmt: skip
    """Writes all rows as the new Minari dataset `dataset_id` and returns it. An episode's last obs_next is its last observation.

    Actions are the environment's, as it took them: inside the bounds, and rounded where the space has whole numbers.

    What began or ended outside the buffer becomes an episode of what is there; a row whose obs_next is not obs of the row after
    it ends one too, as truncated.

    Args:
        buffer: With obs_next.
        dataset_id: Such as "cartpole/expert-v0".
        env: An environment, its id or its spec: gives the spaces, and is noted in the dataset.
        observation_space, action_space: Instead; without either the action space that the buffer knows.
        metadata: For `minari.create_dataset_from_buffers`: author, description … Images are stored exactly unless it says
            `jpeg_encoding=True`.

    Raises:
        ImportError: minari is missing. ValueError: no rows, neither env nor spaces, or rows that do not fit the spaces; the id
            exists already.
    """
    minari = _minari()
    if env is not None and not isinstance(env, gym.Env):
        opened: gym.Env[object, object] = make(env) if isinstance(env, str) else gym.make(env)
        with opened as made:
            return to_minari(buffer, dataset_id, env=made, observation_space=observation_space, action_space=action_space,
                             **metadata)
    observation_space = observation_space or (env and env.observation_space)
    action_space = action_space or (env and env.action_space) or buffer.act_space
    if observation_space is None or action_space is None:
        raise ValueError("to_minari: expected env, or observation_space and action_space; got neither")
    flat = dict(leaves(to_arrays(buffer), "")) if len(buffer) else {}
    if not flat:
        raise ValueError(f"to_minari: {buffer!r} has no rows; expected at least one")
    specs = specs_of(observation_space, "obs") | specs_of(observation_space, "obs_next") | specs_of(action_space, "act")
    for spec in specs.values():
        column = flat.get(spec.name)
        if column is None or (column.shape[1:], column.dtype) != (spec.shape, spec.dtype):
            raise spec.error("none" if column is None else f"{column.shape} {column.dtype}", "give the spaces of the stored rows",
                             True)
    if buffer.act_space is not None and buffer.act_space != action_space:
        raise ValueError(f"to_minari: the actions of {buffer!r} are of {buffer.act_space}, the dataset's of {action_space}; give "
                         "the environment that they were recorded in, or its spaces")
    episodes = []
    for rows in _episodes(flat):
        last = rows.stop - 1
        part = {name: column[rows] for name, column in flat.items()}
        seen = {n: np.concatenate([c, flat["obs_next" + n[3:]][last:][:1]]) for n, c in part.items() if is_part(n, "obs")}
        truncated = part["truncated"].tolist()
        truncated[-1] |= not part["terminated"][-1]
        episodes.append(minari.data_collector.EpisodeBuffer(
            observations=as_space(observation_space, seen, "obs"), actions=as_space(action_space, part, "act"), infos={},
            rewards=part["rew"].tolist(), terminations=part["terminated"].tolist(), truncations=truncated))
    spaces = {"observation_space": observation_space, "action_space": action_space}
    return minari.create_dataset_from_buffers(dataset_id, episodes, env=env, **spaces, **{"jpeg_encoding": False, **metadata})


def _column(name: str, value: object) -> Array:
    try:
        column = as_array(value)
    except ValueError as error:
        raise SpecError(f"from_arrays, field {name!r}: got a ragged {type(value).__name__} ({error}); "
                        "give rows of one shape") from None
    if column.dtype.kind not in "biuf" or not column.ndim:
        raise _error(name, column, "an array [N, …] of numbers", "encode it, or leave it out")
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def _error(name: str, column: Array | None, text: str, mend: str, got: bool = False) -> SpecError:
    came = "none" if column is None else f"{column.shape} {column.dtype}"
    return SpecError(f"from_arrays, field {name!r}: {f'got {came} with {text}' if got else f'expected {text}, got {came}'}; "
                     f"{mend}")


def _with_next(flat: dict[str, Array], obs: Mapping[str, Array]) -> dict[str, Array]:
    """The rows whose next observation is known, with it."""
    terminated, truncated = flat["terminated"], flat["truncated"] & ~flat["terminated"]
    unknown = truncated.copy()
    unknown[-1] |= not terminated[-1]
    here = np.flatnonzero(~unknown)
    out = {name: column[here] for name, column in flat.items()}
    out["truncated"] = out["truncated"] | (unknown[here + 1 - terminated[here]] & ~terminated[here])
    out |= {f"obs_next{name[3:]}": column[here + ~terminated[here]] for name, column in obs.items()}
    if unknown.any():
        warnings.warn(f"from_arrays: {int(unknown.sum())} of {len(unknown)} rows are left out, since what they led to is not "
                      "known; give obs_next", stacklevel=3)
    return out


def _of_spaces(owner: str, value: object, name: str, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """The leaves of one episode in the dtypes of their space."""
    flat = dict(leaves(value, name))
    own = [spec.owned_by(owner) for spec in specs.values() if is_part(spec.name, name)]
    return {spec.name: spec.convert(flat.get(spec.name), rows=True) for spec in own}


def _episodes(flat: Mapping[str, Array]) -> list[slice]:
    """The rows of one episode after the other."""
    ends = flat["terminated"] | flat["truncated"]
    for name, column in flat.items():
        if is_part(name, "obs"):  # what leads elsewhere cannot stand in one list of observations
            differs = flat["obs_next" + name[3:]][:-1] != column[1:]
            ends[:-1] |= differs.reshape(len(differs), -1).any(1)
    ends[-1] = True
    stops = (np.flatnonzero(ends) + 1).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def _minari() -> ModuleType:
    try:
        importlib.import_module("h5py")
        return importlib.import_module("minari")
    except ImportError as error:
        raise ImportError("Minari datasets need minari and h5py: pip install 'parl_like[minari]'") from error

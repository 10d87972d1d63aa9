"""Experience: what a helper stores for time t, and the layouts of other designs as read-only views of such rows.

Views show actions as the rows have them: the policy's of `buffer[:]`, the environment's of `to_arrays(buffer)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from parl_like.data.buffers.fields import is_part
from parl_like.data.timestep import StepType, TimeStep, discount_of
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, leaves

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2  # `game_over` of a PARL record


class Experience(NamedTuple):
    """One row: the action taken at time t, what it was taken in, and what it led to. `experience` makes it.

    Attributes:
        obs, act: What the environment showed at t, and the action taken then.
        rew: For *that* action (`TimeStep.reward` is for the previous one), in environment units.
        terminated, truncated: Whether the task ended with this action; whether a time limit or an interruption cut it off.
        obs_next: What the environment showed after it; at an episode's end the true final observation.
        state: Recurrent memory before the action, or None.
        policy: What predict wants kept, or None.
        info: The environment's info dict after the action.
        env_id: Index of the environment.
    """

    obs: Any
    act: Any
    rew: float | Array
    terminated: bool
    truncated: bool
    obs_next: Any
    state: Any
    policy: Any
    info: Any
    env_id: int

    def row(self) -> dict[str, object]:
        """The fields that hold something, for `ReplayBuffer.add`."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def experience(step: TimeStep, next_step: TimeStep, state: object = None, policy: object = None) -> Experience:
    """The row between two consecutive steps of one episode. A true end that falls on the time limit is terminated only.

    Raises:
        ValueError: the steps are not consecutive: after LAST or before FIRST there is no row; or two environments.
    """
    if step.is_last or next_step.is_first:
        raise ValueError(f"experience: {step.step_type.name} followed by {next_step.step_type.name} crosses an episode's border, "
                         "where no action is stored; pair each step with its successor inside the episode")
    if step.env_id != next_step.env_id:
        raise ValueError(f"experience: steps of environments {step.env_id} and {next_step.env_id}; pair steps of one environment")
    terminated = next_step.is_last and next_step.discount == 0
    return Experience(step.observation, next_step.prev_action, next_step.reward, terminated, next_step.is_last and not terminated,
                      next_step.observation, state, policy, next_step.env_info, step.env_id)


def as_parl_record(rows: Batch | Mapping[str, object]) -> Batch:
    """Rows as PARL's records: an episode of T actions gives T + 1, the last with the final inputs and a dummy action.

    "Next" fields are those of the following record; a record with a non-zero status has no successor in its episode. An episode
    still open at the end of the rows gets its newest inputs as a last record with status 0.

    Args:
        rows: Consecutive rows of one lane in time order, e.g. `buffer[:]`, with obs, act, rew, terminated, truncated and obs_next
            ([T, …] each), with `state` or without.

    Returns:
        Read-only arrays [T + episodes, …]: inputs; states (as stored; 0 in last records); actions (0 in last records); has_action
        (bool: not a dummy); rewards, of `actions` (0 in last records); game_over (int: status of *this* step, 0 running,
        1 terminated, 2 truncated).

    Raises:
        ValueError: no rows, a field is missing, or rows are not consecutive.
    """
    layout = _Layout(flat := _rows(rows))
    status = np.where(flat["terminated"], TERMINATED, np.where(flat["truncated"], TRUNCATED, RUNNING))
    out = layout.inputs("inputs")
    for key, name in (("state", "states"), ("act", "actions"), ("rew", "rewards")):
        out |= layout.put(layout.own, key, name)
    out["has_action"] = layout.place(layout.own, np.ones(len(status), bool))
    out["game_over"] = layout.place(layout.final, status[layout.ends])
    return _read_only(out)


def as_alf(rows: Batch | Mapping[str, object]) -> Batch:
    """Rows as ALF's time steps: an episode of T actions gives T + 1, rewards and actions one step later than in the rows.

    Args:
        rows: As for `as_parl_record`; env_id and info are taken where stored. The first row counts as the start of its episode.

    Returns:
        Read-only arrays [T + episodes, …], fields as in `TimeStep`: step_type, reward and prev_action (0 at FIRST), discount,
        observation, env_id, env_info, and `untransformed` empty, for rows are raw. An open episode ends in MID.

    Raises:
        ValueError: as `as_parl_record`.
    """
    layout = _Layout(flat := _rows(rows))
    step_type = np.full(layout.n, StepType.MID, np.int64)
    step_type[layout.first] = StepType.FIRST
    step_type[layout.final[_done(flat)[layout.ends]]] = StepType.LAST
    discount = np.ones(layout.n)
    discount[layout.own + 1] = discount_of(flat["terminated"])
    env_id = np.zeros(layout.n, np.int64)
    env_id[layout.own] = flat.get("env_id", 0)
    env_id[layout.final] = env_id[layout.final - 1]
    out = {"step_type": step_type, "discount": discount, **layout.inputs("observation"), "env_id": env_id}
    for key, name in (("rew", "reward"), ("act", "prev_action"), ("info", "env_info")):
        out |= layout.put(layout.own + 1, key, name)
    batch = _read_only(out)
    for name in ("untransformed", "env_info"):
        if name not in batch:
            batch[name] = Batch()
    return batch


def as_sartsa(rows: Batch | Mapping[str, object], act: object = None) -> Batch:
    """Rows as SARTSA traces: state and action are one longer than reward and terminal, so next_state[i] = state[i + 1].

    Where terminal[i], state[i + 1] opens the next episode. The design knows no truncation: `terminal` is either end, and
    bootstrapping through a time limit needs the rows' own obs_next.

    Args:
        rows: As for `as_parl_record`.
        act: The action after the last row, if it is known; else the last slot is 0 and masked.

    Returns:
        Read-only arrays: state [T + 1, …], action [T + 1, …], reward [T], terminal [T] bool, action_mask [T + 1] bool (False at
        the dummy action).

    Raises:
        ValueError: as `as_parl_record`.
    """
    flat = _rows(rows)
    done = _done(flat)
    out = {f"state{tail}": np.concatenate([v, flat[f"obs_next{tail}"][-1:]]) for tail, v in _group(flat, "obs")}
    final = dict(leaves({} if act is None else act, ""))
    for tail, column in _group(flat, "act"):
        last = np.zeros_like(column[:1])
        if act is not None:
            last[0] = final[tail[1:]]
        out[f"action{tail}"] = np.concatenate([column, last])
    out |= {f"reward{tail}": column.copy() for tail, column in _group(flat, "rew")}
    out["terminal"] = done
    out["action_mask"] = np.append(np.ones(len(done), bool), act is not None)
    return _read_only(out)


class _Layout:
    """The places of T rows among T + episodes records: a row at its own record, and after each episode one final record.

    Attributes:
        n: Records.
        ends: [T] bool, the rows that end an episode or the rows.
        own: [T] record of each row; what a row leads to is in record own + 1.
        first, final: [episodes] first and last record of each episode.
    """

    def __init__(self, flat: dict[str, Array]) -> None:
        self.flat, self.ends = flat, _done(flat)
        self.ends[-1] = True
        self.own = np.arange(len(self.ends)) + np.cumsum(self.ends) - self.ends
        self.final = self.own[self.ends] + 1
        self.first = np.append(0, self.final[:-1] + 1)
        self.n = len(self.ends) + len(self.final)

    def place(self, at: Array, values: Array) -> Array:
        """Values [k, …] at records `at` [k], zeros elsewhere."""
        out = np.zeros((self.n, *values.shape[1:]), values.dtype)
        out[at] = values
        return out

    def put(self, at: Array, key: str, name: str) -> dict[str, Array]:
        """A field of the rows, nested or not, at records `at` [T], under another name."""
        return {name + tail: self.place(at, column) for tail, column in _group(self.flat, key)}

    def inputs(self, name: str) -> dict[str, Array]:
        """obs, and in final records obs_next."""
        out = self.put(self.own, "obs", name)
        for tail, column in _group(self.flat, "obs_next"):
            out[name + tail][self.final] = column[self.ends]
        return out


def _rows(rows: Batch | Mapping[str, object]) -> dict[str, Array]:
    """Checked rows as flat arrays."""
    flat = dict(rows.leaves() if isinstance(rows, Batch) else leaves(rows, ""))
    flat = {name: np.asarray(value) for name, value in flat.items()}
    for name in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
        if not _group(flat, name):
            raise ValueError(f"rows have no field {name!r}; got {', '.join(flat) or 'nothing'}")
    if not len(flat["terminated"]):
        raise ValueError("there are no rows; a view needs at least one")
    inner = ~_done(flat)[:-1]
    for tail, column in _group(flat, "obs"):
        if f"obs_next{tail}" not in flat:
            raise ValueError(f"rows have 'obs{tail}' but no 'obs_next{tail}'; both need the same fields")
        differs = (flat[f"obs_next{tail}"][:-1] != column[1:]).any(axis=tuple(range(1, column.ndim))) & inner
        if differs.any():
            i = int(differs.argmax())
            raise ValueError(f"rows {i} and {i + 1} are not consecutive: obs_next{tail} of the first is not obs{tail} of the "
                             "second; give rows of one lane in time order, and mark interrupted episodes with truncate_open")
    return flat


def _group(flat: dict[str, Array], key: str) -> list[tuple[str, Array]]:
    """The leaves of a field, by what follows its name: [("", column)], or [(".camera", column), …] if it is nested."""
    return [(name[len(key) :], column) for name, column in flat.items() if is_part(name, key)]


def _done(flat: dict[str, Array]) -> Array:
    return np.logical_or(flat["terminated"], flat["truncated"])


def _read_only(flat: dict[str, Array]) -> Batch:
    for array in flat.values():
        array.setflags(write=False)
    return Batch.nest(flat)

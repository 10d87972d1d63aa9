"""RowWriter: the part of a helper that stores rows, and reads them as the algorithm gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.agents.acting import Acting
from parl_like.agents.helper_checks import ORDER, check_places, check_reward
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.helper_options import HelperOptions
from parl_like.agents.row_counts import OnePlayer
from parl_like.agents.row_format import ORIGIN_FIELDS, RowOrigins
from parl_like.data.buffers.fields import is_part
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.extra_fields import KeptColumns
from parl_like.data.transforms import Hindsight, Source, Transforms
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.errors import NotEnoughRows, unknown
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class RowWriter:
    """Rows of one helper on their way into the buffer, and out of it.

    Args:
        context: The helper's agent and task.
        acting: Knows the newest action, and the memory before it.
        options: What is stored of each row beside the transition, as settled when the helper joined its task.

    Attributes:
        format: Of the rows. policy: Whether they have a column for the action's log-probability.
        origins: Where the rows of the lanes stand.
        unmapped: Whether the environment takes the policy's actions as they are.
    """

    def __init__(self, context: HelperContext, acting: Acting, options: HelperOptions) -> None:
        agent, lanes, buffer, window = context.agent, context.lanes, context.buffer, context.window
        self.context, self.acting, self.format, self.options = context, acting, acting.format, options
        self.policy = policy = bool(options.store_policy)
        self._vector, self._lane_numbers, self._plain = agent.vector, np.array(lanes), acting.format.plain
        self.unmapped = context.codec.identity
        along = window.in_order or window.rows > 1 or acting.transforms.behind or getattr(buffer, "stack_num", 1) > 1
        self._player = OnePlayer(context.where) if along and not agent.vector else None
        self._versioned = agent.agent_pool.remote  # the parameters that act there may not be those that learn
        numbers = range(context.first_lane, context.first_lane + len(lanes))  # `lanes` of workers begin at 0 in each
        self.origins = RowOrigins([name for name in window.fields if name in ORIGIN_FIELDS], numbers, lambda: acting.steps)
        outputs = context.task.policy_specs if buffer is not None and (policy or not options.policy_required) else ()
        self._kept = KeptColumns(context.where, outputs, options.store_info, len(lanes) if agent.vector else 0)
        self._has_more = bool(self.format.memory or policy or self._versioned or self.origins.names or options.extras
                              or self._kept.specs)

    def columns(self) -> list[Spec]:
        """Return the columns of a row, in the order in which `store` writes them."""
        made = self.format.columns(self.policy, self._versioned, self.origins.names, (*self._kept.specs, *self.options.extras))
        return [spec.owned_by(f"task {self.context.name!r}") for spec in made]

    def check_buffer(self, buffer: ReplayBuffer) -> None:
        """Raise ValueError for lanes that are too short for what is looked at together, and SpecError for frames other than the
        model's. Its columns have been allocated."""
        context = self.context
        rows = context.window.rows + max(self.acting.transforms.behind, buffer.stack_num - 1)
        if rows > buffer.lane_size and not context.window.in_order:
            raise ValueError(f"{context.where}: the algorithm looks at {rows} rows in a row, a lane of the buffer holds "
                             f"{buffer.lane_size}; give the helper size ≥ {rows * buffer.n_lanes}")
        for name, spec in self.format.raw.items():
            if buffer.read_shape(name) != spec.shape:
                raise spec.owned_by(context.where).error(
                    f"{buffer.read_shape(name)} from {buffer!r}", "stack_num goes with observations that come stacked "
                    "(save_only_last_obs); for single frames use the transform FrameStacker")

    # ---------------------------------------------------------------------------------------------------------- storing

    def store(
        self, obs: object, act: object, rew: object, obs_next: object, terminated: Any, truncated: Any,
        info: Mapping[str, object] | None, mask: Array | None, extra: Mapping[str, object] | None,
    ) -> tuple[int, int]:
        """Store one transition (n of them for a vector environment), see `AgentHelper.store`; return the number of rows, and of
        those that ended an episode. There is a buffer."""
        buffer: ReplayBuffer = self.context.buffer  # type: ignore[assignment]
        head: tuple[object, ...]
        tail: tuple[object, ...]
        if self._plain:
            head, tail = (obs,), (obs_next,)
        else:
            names = self.format.raw_names
            head, tail = self.format.flat(obs, names), self.format.flat(obs_next, names)
        acts = (act,) if self.unmapped else self.policy_units(act)
        check_reward(self.context, rew)
        values: tuple[object, ...] = (*head, *acts, rew, terminated, truncated, *tail)
        if self._has_more or extra is not None:
            values += self._more(act, extra or {}, info, terminated, truncated)
        try:
            if self._vector:
                lanes, ends = self._lane_numbers, np.logical_or(terminated, truncated)
                if mask is not None and not mask.all():
                    lanes, ends, values = lanes[mask], ends[mask], tuple(np.asarray(v)[mask] for v in values)
                buffer.push_rows(lanes, values)
                n, ended = len(lanes), int(ends.sum())
            else:
                n, ended = 1, terminated or truncated
                if ended or not self.acting.steps:
                    check_places(self.context, obs, rew, obs_next, terminated, truncated)
                player = self._player
                if player is not None:
                    if head[0] is not player.end[0]:  # a call for each row would cost 1 % of a step
                        player.other_row(head)
                    player.end = tail
                    if ended:
                        player.begin()
                buffer.push(self.context.lanes.start, values)
            if self.origins.names:
                self.origins.stored((slice(None) if mask is None else mask) if self._vector else 0,
                                  ends if self._vector else np.bool_(ended))
        except ValueError as error:
            raise type(error)(f"{self.context.agent}: {error}{ORDER}") from None
        self.acting.steps += n
        if self.acting.changes:  # for statistics of the rollout
            self.acting.transforms.reward(np.asarray(rew) if mask is None else np.asarray(rew)[mask], mask)
        return n, ended

    def policy_units(self, act: object) -> tuple[object, ...]:
        """The arrays of an action in the policy's own units: what the explorer made, or the inverse of the map for an action from
        elsewhere."""
        last, out, row = self.acting.last
        if act is last and out is not None:
            return tuple([out[name][row] if row >= 0 else out[name] for name in self.context.codec.names])
        return self.context.codec.to_policy(act)

    def _more(self, act: object, extra: Mapping[str, object], info: Any, terminated: Any, truncated: Any) -> tuple[object, ...]:
        """Memory before the action, its log-probability, the version of the parameters, the origins, what else is kept, and the
        extras: the columns after `obs_next`."""
        values: tuple[object, ...] = self.acting.stored_state if self.format.memory else ()
        if self.policy:
            values += (self._log_prob(act),)
        if self._versioned:
            version = self.acting.version
            values += (version if not self._vector else np.full(len(self._lane_numbers), version),)
        values += self.origins.values(slice(None) if self._vector else 0)
        if self._kept.specs:
            values += self._kept.values(act, self.acting.last, info, np.logical_or(terminated, truncated))
        extras = [spec.name for spec in self.options.extras]
        if extra.keys() != set(extras):
            raise ValueError(f"{self.context.where}: store got extra {sorted(extra)}; expected {extras}, as the helper's "
                             "`extras` say")
        return values + tuple([extra[name] for name in extras])

    def _log_prob(self, act: object) -> object:
        """The log-probability of the action that is stored."""
        last, out, row = self.acting.last
        if act is last and out is not None:
            return out["log_prob"][row] if row >= 0 else out["log_prob"]
        if self.options.policy_required:
            raise ValueError(f"{self.context.where}: store_policy keeps the log-probability of what predict returned last; store "
                             f"that action, {act!r} is another")
        # A task that learns from the actions of another has none, and stores none from here on; all helpers of a task send the
        # same fields.
        for agent in self.context.agent.agent_pool.agents:
            for helper in agent.helpers.values():
                if helper.name == self.context.name:
                    helper.forgo_policy()
        return np.zeros(len(self._lane_numbers), np.float32) if self._vector else 0.0

    def begin(self, lane: int) -> None:
        """Begin an episode in this environment."""
        if self._player is not None:
            self._player.begin()
        self.origins.end(lane)

    def cut(self, rows: Array | None) -> None:
        """End the open episodes of these environments, or of all: see `AgentHelper.interrupt`."""
        if self._player is not None:
            self._player.begin()
        self.origins.end(slice(None) if rows is None else rows)
        if self.context.buffer is not None:
            for lane in self.context.lanes if rows is None else self._lane_numbers[rows].tolist():
                self.context.buffer.truncate_open(lane)

    # ---------------------------------------------------------------------------------------------------------- reading

    def replayed(self, rows: dict[str, Array], indices: Array, last_index: Array, real: Array | None = None, *,
                 buffer: ReplayBuffer | None = None) -> dict[str, Array]:
        """Raw rows of a buffer (None: the task's) as the algorithm gets them; the caller holds its lock."""
        buffer, fields = self.context.buffer if buffer is None else buffer, self.context.window.fields
        assert buffer is not None
        if "number" in fields:
            rows["number"] = buffer.serials(indices) + (indices // buffer.lane_size << 40)
        if "to_go" in fields:
            rows["to_go"] = buffer.to_go(indices)
        if "next_act" in fields:
            following = buffer.next(last_index)
            rows["has_next"] = following != last_index
            for name, column in buffer.take(following, [n for n in buffer.columns if is_part(n, "act")]).items():
                column[~rows["has_next"]] = 0
                rows[f"next_{name}"] = column
        if not self.acting.changes:
            return rows
        return self.acting.transforms.replay(rows, Source(buffer, indices, self.context.rng, last_index, real))

    def read(self, index: object, key: str, transformed: bool) -> Any:
        """Return what `AgentHelper.read` returns.

        Raises:
            NotEnoughRows: the helper keeps no rows. KeyError: they have no such field. IndexError: a position holds no row.
        """
        context, buffer = self.context, self.context.buffer
        if buffer is None:
            raise NotEnoughRows(f"{context.where}: {self.options.kind.__name__} keeps no rows to read")
        transforms = self.acting.transforms
        if not transformed or not len(transforms):
            return buffer.get(index, key)
        positions = np.asarray(buffer.positions(index))
        chain = Transforms(t for t in transforms.for_helper(1, "test") if not isinstance(t, Hindsight))
        with buffer.lock:
            source = Source(buffer, positions.ravel(), context.rng, positions.ravel())
            rows = chain.replay(buffer.gather(positions.ravel()), source)
        rows["done"] = rows["terminated"] | rows["truncated"]
        flat = {n: c.reshape((*positions.shape, *c.shape[1:]))[()] for n, c in rows.items() if is_part(n, key)}
        if not flat:
            raise KeyError(f"{context.where}: " + unknown("field", key, rows))
        return flat[key] if key in flat else Batch.nest({name[len(key) + 1 :]: column for name, column in flat.items()})

    # ------------------------------------------------------------------------------------------------------------ state

    def state_dict(self) -> State:
        """Return where the rows of the lanes stand, where the algorithm asks for it."""
        return {"first": self.origins.first.copy(), "episode": self.origins.episode.copy()} if self.origins.names else {}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave, which may stand among other keys."""
        if self.origins.names and "first" in state:
            self.origins.first, self.origins.episode = plain.array(state["first"]).copy(), plain.array(state["episode"]).copy()

"""Acting: the part of a helper that asks for actions, and what it remembers between two of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from parl_like.agents.helper_context import HelperContext
from parl_like.agents.helper_options import HelperOptions
from parl_like.agents.row_format import RowFormat
from parl_like.data.buffers.fields import is_part
from parl_like.data.storage.state_check import check_count
from parl_like.learning.explorers import Noise, random_actions
from parl_like.tasks.tickets import joined
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.copying import read_only
from parl_like.values.errors import NotEnoughRows
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec, SpecError

LOG_PROB = Spec("log_prob", (), np.dtype(np.float32))
"""The log-probability of an action, as explorers give it."""


class Acting:
    """Predictions of one helper: transforms before them, noise with them, memory and outputs after them.

    Args:
        context: The helper's agent and task.
        options: The helper's explorer and transforms, as settled when it joined its task.
        in_step: Whether acting and learning must see the same statistics.

    Attributes:
        steps: Rows that the helper has stored.
        random_until: Rows before which it acts at random; random_steps: the same while nothing is collected.
        collecting: See `AgentHelper.collecting`.
        format: The leaves of observations, and the specs of a recurrent model's memory.
        noise: Of the explorer; None: it draws none.
        state: A recurrent model's memory before the next prediction. stored_state: before the newest one.
        last: The newest action, the outputs that it was made of, and its row in these; −1: all rows.
        version: Of the parameters of the newest prediction.
        changes: Whether there are transforms.
    """

    def __init__(self, context: HelperContext, options: HelperOptions, in_step: bool) -> None:
        self.context, self.agent, self.comm = context, context.agent, context.comm
        explorer, self.transforms = options.explorer, options.transforms
        if explorer is not None:
            self.comm.wrapper.predictions.add_explorer(explorer, self.agent)
        self.format = row_format = RowFormat(context, self.transforms, options.obs_space)
        self.steps, self.random_until, self.random_steps = 0, 0.0, 0
        self.collecting: bool | str = False
        self.noise = None if explorer is None or explorer.noise is None else Noise(
            explorer, context.rng, context.mode != "test", len(context.lanes))
        self.changes, self.version = bool(len(self.transforms)), 0
        self.state = self.stored_state = self._zero_state()
        self.last: tuple[Any, Mapping[str, Array] | None, int] = (None, None, 0)
        self._plain, self._recurrent, self._vector = row_format.plain, bool(row_format.state), context.agent.vector
        self._in_step = in_step
        self._update = -1  # that the transforms were prepared for

    # -------------------------------------------------------------------------------------------------------- actions

    def predict(self, obs: object) -> Any:
        """Return the action for an observation, or for n of them; see `AgentHelper.predict`."""
        agent = self.agent
        if agent.signal is not None:
            agent.obey()
        values = (obs,) if self._plain else self._transformed(obs) if self.changes else self.format.flat(obs, self.format.inputs)
        if self._recurrent:
            self.stored_state = self.state
            values += self.state
        if self._vector:
            return self._predict_rows(values)
        noise = self.noise
        if noise is not None:  # written out: a call would cost 3 % of a request
            values += (noise.left.pop() if noise.left else noise.draw(),)
        ticket = self.comm.predict(values)
        row = ticket.start
        if self._recurrent:
            self.state = tuple(part[row] for part in self._memory_of(ticket.out))
        self.version = ticket.version
        if ticket.acts is None:
            return Batch.nest({name: value[row] for name, value in ticket.out.items()})
        if self.steps < self.random_until:
            return self._at_random(values, {name: value[row : row + 1] for name, value in ticket.out.items()}, 1)
        act = ticket.acts[row]
        self.last = (act, ticket.out, row)
        return act

    def _predict_rows(self, values: tuple[Any, ...]) -> object:
        n, comm = len(self.context.lanes), self.comm
        if self.noise is not None:
            values += (self.noise.rows(n),)
        tickets = comm.predict_rows(values, n)
        out = joined(tickets)
        self.version = tickets[0].version
        if self._recurrent:
            self.state = tuple(np.array(part) for part in self._memory_of(out))  # copies: an episode's begin writes zeros here
        if not self.context.codec.acts_in(out):
            return Batch.nest(out)
        if self.steps < self.random_until:
            return self._at_random(values, out, n)
        act = self.context.codec.to_env(out)
        self.last = (act, out, -1)
        return act

    def _at_random(self, values: tuple[object, ...], out: dict[str, Array], n: int) -> object:
        """Take random actions instead of those that the task gave for `values`. It was asked all the same, for its memory, and
        so that agents keep step."""
        masks = {name[4:]: np.asarray(value) for name, value in zip(self.format.inputs, values, strict=False)
                 if is_part(name, "obs.mask")}
        out |= random_actions(self.context.model.act_space, self.context.rng, n, masks)
        codec = self.context.codec
        self.last = (codec.to_env(out), out, -1) if self._vector else (codec.listed(out)[0], out, 0)  # type: ignore[index]
        return self.last[0]

    def collect(self, value: bool | str) -> None:
        """Begin or end collecting; 'random': until then actions are drawn at random."""
        self.collecting = value
        self.random_until = math.inf if value == "random" else self.random_steps

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The outputs that the task gave for the newest prediction: flat output name → [...], [n, ...] of a vector environment;
        read-only.

        Raises:
            NotEnoughRows: there was none.
        """
        _, out, row = self.last
        if out is None:
            raise NotEnoughRows(f"{self.context.where}: nothing was predicted yet")
        return {name: read_only(value) if row < 0 else read_only(value)[row] for name, value in out.items()}

    def ask(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of any number of rows; see `AgentHelper.ask`.

        Raises:
            SpecError: the fields are not those that the task predicts from.
        """
        if self.agent.signal is not None:
            self.agent.obey()
        names = [spec.name for spec in self.comm.wrapper.predictions.specs]
        if rows.keys() != set(names):
            raise SpecError(f"{self.agent}: task {self.context.name!r}, ask: expected {', '.join(names)}, got {', '.join(rows)}")
        return joined(self.comm.predict_rows(tuple(rows[name] for name in names), len(rows[names[0]])))

    def explore(self) -> None:
        """Draw actions also in test mode."""
        if self.noise is not None:
            self.noise.drawn = True

    # ------------------------------------------------------------------------------------------------------- transforms

    def _transformed(self, obs: object) -> tuple[object, ...]:
        """Raw observations as the model gets them, in the order of its inputs."""
        if self._in_step and self._update != self.context.task.learns:
            self.prepare()
        names = self.format.raw_names
        raw = dict(zip(names, map(np.asarray, self.format.flat(obs, names)), strict=True))
        if not self._vector:
            raw = {name: value[None] for name, value in raw.items()}
        made = self.transforms.observe(raw)
        return tuple(made[name] if self._vector else made[name][0] for name in self.format.inputs)

    def prepare(self) -> None:
        """Renew the statistics of transforms for the update after those that the task has given so far; they stand still until
        it is over."""
        # Rows that wait belong to that update, and were made ready for it: nothing is renewed before they are learned from.
        self._update = -1 if self.context.comm.wrapper.trainings.rows else self.context.task.learns
        self.transforms.prepare(self._update)

    # ----------------------------------------------------------------------------------------------------------- memory

    def begin(self, lane: int) -> None:
        """Begin an episode in this environment: memory from zero, the explorer's anew."""
        if self.changes:
            self.transforms.begin(lane)
        if self.noise is not None:
            self.noise.begin(lane)
        if not self._vector:
            self.state = self._zero_state()
        else:
            for part in self.state:
                part[lane] = 0

    @property
    def memory(self) -> tuple[Array, ...]:
        """A recurrent model's memory before the next prediction, that of the explorer, and that of transforms."""
        return (*self.state, *(() if self.noise is None else self.noise.memory), *self.transforms.memory)

    @memory.setter
    def memory(self, value: tuple[Array, ...]) -> None:
        n, of_transforms = len(self.format.state), len(value) - len(self.transforms.memory)
        self.state = value[:n]
        if self.noise is not None:
            self.noise.memory = value[n:of_transforms]
        self.transforms.memory = value[of_transforms:]

    def earning(self, store: Callable[..., None]) -> Callable[..., None]:
        """Return `store` of a helper whose model counts rewards in its memory: they count before the step is stored, which may
        wait."""
        return partial(self._earned, store)

    def _earned(self, store: Callable[..., None], *row: Any, **named: Any) -> None:
        given = dict(zip(("obs", "act", "rew", "obs_next", "terminated", "truncated", "info", "mask"), row, strict=False)) | named
        at, rew, mask = list(self.format.state).index(f"state.{self.context.model.reward_state}"), given["rew"], given.get("mask")
        if self._vector:
            self.state[at][...] += np.asarray(rew, np.float32) * (1 if mask is None else mask)
        else:
            earned: Any = np.float32(self.state[at] + rew)
            self.state = (*self.state[:at], earned, *self.state[at + 1 :])
        store(*row, **named)

    # ------------------------------------------------------------------------------------- a row whose step is not complete

    def waiting(self, act: object) -> dict[str, object]:
        """Return what a row with this action will need of its prediction: of who has predicted another one since, the memory and
        the version alone."""
        last, out, row = self.last
        known = act is last and out is not None
        of = out if known and out is not None else {}
        outputs = {spec.name: np.array(of[spec.name][row]) for spec in self._row_specs() if spec.name in of}
        return {"outputs": outputs, "known": known, "state": [np.array(part) for part in self.stored_state],
                "version": self.version}

    def check_waiting(self, kept: Any) -> None:
        """Raise ValueError for what is nothing that `waiting` gives here."""
        check_count(kept["version"], "version")
        outputs, state, specs = kept["outputs"], kept["state"], {spec.name: spec for spec in self._row_specs()}
        if len(state) != len(self.stored_state) or not kept["known"] and outputs:
            raise ValueError(f"rows that wait: expected a memory of {len(self.stored_state)} arrays, got {len(state)}, and "
                             f"outputs {', '.join(outputs) or 'none'}")
        for name in outputs:
            specs[name].convert(outputs[name])
        for own, part in zip(self.stored_state, state, strict=True):
            Spec("state", np.shape(own), np.asarray(own).dtype).convert(part)

    def take_waiting(self, act: object, kept: Any) -> None:
        """Take back what `waiting` gave for the row with this action, which has been checked."""
        self.stored_state, self.version = tuple(kept["state"]), kept["version"]
        if kept["known"]:
            self.last = act, {name: value[None] for name, value in kept["outputs"].items()}, 0

    def _row_specs(self) -> list[Spec]:
        """The outputs of a prediction that a stored row may have."""
        return [*self.context.codec.specs, LOG_PROB, *self.context.task.policy_specs]

    def state_dict(self) -> State:
        """Return the count of rows, the unused part of the drawn noise, and the explorer's memory."""
        noise: State = {} if self.noise is None else self.noise.state_dict()
        return {"steps": self.steps, **noise}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave, which may stand among other keys."""
        self.steps = plain.whole(state["steps"])
        if self.noise is not None:
            self.noise.load_state_dict(state)

    def _zero_state(self) -> tuple[Array, ...]:
        zeros = (spec.zeros(len(self.context.lanes)) for spec in self.format.state.values())
        return tuple(zeros) if self.context.agent.vector else tuple(rows[0] for rows in zeros)

    def _memory_of(self, out: Mapping[str, object]) -> list[Any]:
        """A recurrent model's memory after a prediction. Raises SpecError where the prediction lacks a part of it."""
        names = self.format.state.keys()
        if missing := names - out.keys():
            raise SpecError(f"{self.context.agent}: task {self.context.name!r}, field {min(missing)!r}: expected in the output "
                            f"of predict, got {', '.join(out)}; this model has a memory, so the algorithm must return `state`")
        return [out[name] for name in names]

"""RowFormat: which columns the rows of a task have at one agent, and the observations of a row in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.helper_context import HelperContext
from parl_like.data.buffers.fields import FLAGS, is_part
from parl_like.data.transforms import Transforms
from parl_like.environment.factory import reward_shape
from parl_like.values.spec import PAIR, Array, Spec, SpecError, is_pair, leaf_spaces, leaves, specs_of

DURATION = Spec("duration", (), np.dtype(np.int64), 1)
"""For `AgentHelper(extras=…)`: the time that the action of a row took, in steps. Without it every action takes one."""

PARAM_VERSION = Spec("param_version", (), np.dtype(np.int64))
"""Column of rows in worker processes: `ComputationTask.version` of the parameters that the action was predicted with."""

ORIGIN_FIELDS = {
    name: Spec(name, (), np.dtype(kind)) for name, kind in (("first", bool), ("lane", np.int64), ("episode", np.int64),
                                                      ("step", np.int64))
}
"""Columns that algorithms may ask for (`Window.fields`)."""


class RowOrigins:
    """The origin of the next row in each of a helper's lanes.

    Args:
        names: Those of `ORIGIN_FIELDS` that are stored, in the order of `values`.
        lanes: Numbers of the environments.
        acted: Returns how many rows the helper has stored.

    Attributes:
        first, episode: [lanes], of each lane's next row: whether it begins an episode, and the number of that.
    """

    def __init__(self, names: Sequence[str], lanes: range, acted: Callable[[], int]) -> None:
        self.names, self.lane, self._acted = tuple(names), np.array(lanes), acted
        self.first, self.episode = np.ones(len(lanes), bool), np.zeros(len(lanes), np.int64)

    @property
    def step(self) -> Array:
        """Return [lanes] int64: the number of the act of each lane's next row, among the helper's acts, from 1."""
        return self._acted() + np.arange(1, len(self.lane) + 1)

    def values(self, rows: Any) -> tuple[Any, ...]:
        """Return the values of the next row of the lanes `rows`."""
        return tuple([getattr(self, name)[rows] for name in self.names])

    def end(self, rows: Any, ended: object = True) -> None:
        """The next row of these lanes begins an episode where `ended`, unless it does so already."""
        self.episode[rows] += ended & ~self.first[rows]
        self.first[rows] |= ended

    def stored(self, rows: Any, ended: object) -> None:
        """A row of these lanes was stored, which ended an episode or not."""
        self.first[rows] = False
        self.end(rows, ended)


class RowFormat:
    """The format of a task's rows, by its model's inputs and the transforms before them.

    Args:
        context: The agent, whose environment knows the spaces of raw observations and rewards, and the task's model.
        transforms: The helper's own chain.
        obs_space: The space of raw observations, where it is not the environment's.

    Attributes:
        inputs: Names of the observation's leaves as the model gets them. raw: as they come and are stored, with their specs.
        state: The specs of a recurrent model's memory. memory: those of them that rows have.
        plain: One array without transforms: observations pass as they are.
    """

    def __init__(self, context: HelperContext, transforms: Transforms, obs_space: gym.Space[object] | None) -> None:
        self.agent, self.task, self._model, self._env = str(context.agent), context.name, context.model, context.agent.env
        self._codec, self._context = context.codec, context
        inputs: dict[str, Spec] = self._model.inputs()
        self.inputs = [n for n in inputs if is_part(n, "obs")]
        self.state = {n: s for n, s in inputs.items() if n.startswith("state")}
        self.memory = self.state if context.window.memory else {}
        self._obs_space: gym.Space[object] | None = None  # of raw observations, where it is not the model's
        self.raw = self._raw(transforms, obs_space, inputs) if len(transforms) else {n: inputs[n] for n in self.inputs}
        self.raw_names = list(self.raw)
        self.plain = self.inputs == ["obs"] and not len(transforms)

    def _raw(self, transforms: Transforms, space: gym.Space[object] | None, inputs: dict[str, Spec]) -> dict[str, Spec]:
        """Return the specs of what the transforms make the model's inputs from."""
        where = self._context.where
        space = self._context.env_space if space is None else space
        if space is None:
            role = self._context.role
            why = "there is no environment" if role is None else f"{role!r} is no player of the environment"
            raise ValueError(f"{where}: transforms need the space of raw observations, and {why}; give the helper obs_space=")
        self._obs_space = space
        made = specs_of(transforms.space(space), "obs")
        if made.keys() != set(self.inputs):
            raise SpecError(f"{where}, transforms: the model takes {', '.join(self.inputs)}, the transforms make "
                            f"{', '.join(made)}; build it for Transforms([…]).space(env.observation_space)")
        for name, spec in made.items():
            if (spec.shape, spec.dtype) != (inputs[name].shape, inputs[name].dtype):
                raise inputs[name].owned_by(where).error(f"{spec.shape} {spec.dtype} from {transforms!r}",
                                                              "build the model for Transforms([…]).space(env.observation_space)")
        return specs_of(space, "obs")

    def flat(self, obs: object, names: Sequence[str]) -> tuple[object, ...]:
        """Return the leaves of an observation in the order of `names`.

        Raises:
            SpecError: it has others.
        """
        flat = dict(leaves(obs, "obs"))
        if flat.keys() != set(names):
            if is_pair(obs):
                raise SpecError(f"{self.agent}: task {self.task!r}, field 'obs': expected {', '.join(names)}, got the pair "
                                f"(observation, info); {PAIR}")
            missing, extra = sorted(set(names) - flat.keys()), sorted(flat.keys() - set(names))
            raise SpecError(f"{self.agent}: task {self.task!r}, field 'obs': expected {', '.join(names)}, got "
                            f"{', '.join(flat) or 'nothing'} (missing {missing}, unexpected {extra}); give the keys of the "
                            "model's observation space")
        return tuple([flat[name] for name in names])

    def choices(self) -> dict[str, Spec]:
        """Return the columns whose numbers choose one of several things, with bounds: what lies outside would be looked up in
        vain."""
        space: Any = getattr(self._model, "obs_space", None) if self._obs_space is None else self._obs_space
        out: dict[str, Spec] = {}
        for name, part in leaf_spaces(space, "obs") if space is not None else ():
            if isinstance(part, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
                out |= {name: self.raw[name], f"obs_next{name[3:]}": self.raw[name]}
        return out | self._codec.choices

    def check_choices(self, state: object, specs: Mapping[str, Spec] | None = None) -> None:
        """Raise SpecError where a saved state of rows, however nested, holds a choice that there is not.

        Args:
            specs: Column → its bounds; None: `choices()`.
        """
        specs = self.choices() if specs is None else specs
        parts: Any = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list) else ()
        for name, part in parts:
            if name in specs and isinstance(part, np.ndarray):
                specs[name].owned_by(f"task {self.task!r}, saved rows").check_bounds(part)
            elif isinstance(part, (Mapping, list)):
                self.check_choices(part, specs)

    def columns(self, policy: bool, version: bool, origins: Sequence[str], extras: Sequence[Spec]) -> list[Spec]:
        """Return everything that a row has, in the order in which a helper stores it.

        Args:
            policy, version: Whether the action's log-probability, and the version of the parameters, are stored.
            origins: Which of `ORIGIN_FIELDS` are.
            extras: The columns after those.
        """
        # Of several kinds of reward an environment may say how many (`reward_space`); the algorithm combines them.
        specs = [Spec(n, s.shape, s.dtype) for n, s in self.raw.items()]  # without bounds: those were checked when predict asked
        specs += self._codec.specs
        specs += [Spec("rew", reward_shape(self._env), np.dtype(np.float64))]
        specs += [Spec(name, (), np.dtype(bool)) for name in FLAGS]
        specs += [Spec("obs_next" + n[3:], s.shape, s.dtype) for n, s in self.raw.items()]
        specs += self.memory.values()
        specs += [Spec("policy.log_prob", (), np.dtype(np.float32))] * policy
        return [*specs, *[PARAM_VERSION] * version, *[ORIGIN_FIELDS[name] for name in origins], *extras]

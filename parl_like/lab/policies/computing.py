"""Computations of an exported policy: by the network that it was trained as, in torch, or by a graph, in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from parl_like.data.transforms import Transforms
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.values.spec import Array, Spec

Flat = dict[str, Array]


class Computation(Protocol):
    """From observations to outputs, with what has to be remembered in between."""

    remembers: bool
    makes_actions: bool

    def explore(self) -> None:
        """Predict as in training from here on, where the network itself explores; a graph never does."""

    def begin(self, rows: int) -> None:
        """Forget everything; from here on there are so many rows."""

    def restart(self, row: int) -> None:
        """An episode begins in this row with the next observation."""

    def outputs(self, obs: Flat, given: Flat) -> Flat:
        """Return the flat outputs of a prediction, [N, …], for raw observations and what an explorer gives, [N, …]. Where it
        `makes_actions` the best ones are among them, as the environment takes them."""

    def earn(self, name: str, rew: Array) -> None:
        """Add rewards [N] to the state of this name."""


class NetworkComputation:
    """An algorithm's own prediction, behind the transforms of its observations.

    Args:
        task: Only predicts.
        transforms: With their statistics.
    """

    makes_actions = False

    def __init__(self, task: ComputationTask, transforms: Transforms) -> None:
        self.task, self._transforms = task, transforms
        inputs: dict[str, Spec] = task.algorithm.model.inputs()
        self._inputs = [name for name in inputs if name.startswith("obs")]
        self._specs = {name: spec for name, spec in inputs.items() if name.startswith("state")}
        self.remembers = bool(self._specs) or transforms.behind > 0
        self._mode: Mode = "test"
        self.begin(1)

    def explore(self) -> None:
        self._mode = "collect"

    def begin(self, rows: int) -> None:
        self._chain = self._transforms.for_helper(rows, "test")
        self._state = {name: spec.zeros(rows) for name, spec in self._specs.items()}

    def restart(self, row: int) -> None:
        self._chain.begin(row)
        for part in self._state.values():
            part[row] = 0

    def outputs(self, obs: Flat, given: Flat) -> Flat:
        made = self._chain.observe(obs) if len(self._chain) else obs
        inputs = {name: np.ascontiguousarray(made[name]) for name in self._inputs} | self._state | given
        out = self.task.predict(inputs, self._mode)
        self._state = {name: np.array(out.pop(name)) for name in self._state}  # copies: an episode's begin writes zeros here
        return out

    def earn(self, name: str, rew: Array) -> None:
        """Add rewards [N] to the state of this name."""
        self._state[f"state.{name}"][...] += rew


class GraphComputation:
    """A graph of onnxruntime, whose inputs are raw observations and states, and whose outputs are actions, next states and what
    the network predicts.

    Args:
        session: An `onnxruntime.InferenceSession`.
        state: The states; zeros where an episode begins.
        actions, outputs: Names of what else comes out; of outputs without `policy.`.
    """

    makes_actions = True

    def __init__(self, session: Any, state: Mapping[str, Spec], actions: list[str], outputs: list[str]) -> None:
        self._session, self._specs, self._actions = session, dict(state), actions
        self._names = [*actions, *(f"next_{name}" for name in state), *(f"policy.{name}" for name in outputs)]
        self.remembers = bool(state)
        self.begin(1)

    def explore(self) -> None:
        pass

    def begin(self, rows: int) -> None:
        self._state = {name: spec.zeros(rows) for name, spec in self._specs.items()}

    def restart(self, row: int) -> None:
        for part in self._state.values():
            part[row] = 0

    def outputs(self, obs: Flat, given: Flat) -> Flat:
        values = self._session.run(self._names, obs | self._state)
        out = dict(zip(self._names, values, strict=True))
        self._state = {name: np.array(out.pop(f"next_{name}")) for name in self._state}
        return {name.removeprefix("policy."): value for name, value in out.items()}

    def earn(self, name: str, rew: Array) -> None:
        """Add rewards [N] to the state of this name."""
        self._state[f"state.{name}"][...] += rew

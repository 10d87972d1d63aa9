"""Computations of a policy: by the network that it was trained as, in torch, or by a graph, in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch

from parl_like.data.rng import torch_seed
from parl_like.data.transforms import Transforms
from parl_like.interfaces import Mode
from parl_like.lab.policies.description import Description, fields_of_space
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Explorer
from parl_like.learning.explorers.base import lacks
from parl_like.learning.model_check import try_out
from parl_like.tasks.algorithm_runner import AlgorithmRunner
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


class PolicyParts(NamedTuple):
    """The parts of a policy, see `parl_like.lab.policies.policy.Policy`."""

    description: Description
    obs: gym.Space[Any]
    act: gym.Space[Any]
    explorer: Explorer | None
    computation: Computation


class Predicts(Protocol):
    """A task, or an algorithm that has none."""

    @property
    def algorithm(self) -> Algorithm: ...

    def predict(self, inputs: Mapping[str, Array], mode: Mode = ...) -> dict[str, Array]:
        """Return flat outputs, [N, …], for flat inputs, [N, …]."""


class NetworkComputation:
    """An algorithm's own prediction, behind the transforms of its observations.

    Args:
        task: Only predicts.
        transforms: With their statistics.
    """

    makes_actions = False

    def __init__(self, task: Predicts, transforms: Transforms) -> None:
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


class AlgorithmAlone:
    """The predictions of an algorithm that need not have a task; one that it has keeps its optimiser and its lock.

    Raises:
        ValueError: its networks are on another device than the CPU. ContractError: the model does not fit.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        devices = {str(part.device) for network in algorithm.networks().values() for part in network.parameters()} - {"cpu"}
        if devices:
            raise ValueError(f"Policy: the networks of {self._owner()} are on {', '.join(devices)}; expected the CPU; export the "
                             "robot (parl_like.lab.policies.exporting.write), or let its task predict")
        tried, mode_readers = try_out(self._owner, algorithm)
        self.shapes = {name: value.shape[1:] for name, value in tried.items()}
        self._runner = AlgorithmRunner(algorithm, torch.device("cpu"), self._owner, mode_readers)

    def _owner(self) -> str:
        return type(self.algorithm).__name__

    def predict(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> Flat:
        """Return flat outputs, [N, …], for flat inputs, [N, …]."""
        runner = self._runner
        return runner.predict(self.algorithm, inputs, mode, runner.inference, runner.on_rows)


def parts_of_algorithm(algorithm: Algorithm | Callable[[], Algorithm], explorer: Explorer | None, seed: int) -> PolicyParts:
    """Return the parts of the policy that an algorithm is by itself; see `parl_like.lab.policies.policy.Policy`.

    Raises:
        TypeError: it is none, and no function that makes one. ValueError: it predicts no action, or not what the explorer reads.
    """
    made: object = algorithm
    if not isinstance(algorithm, Algorithm) and callable(algorithm):
        with torch_seed(seed):
            made = algorithm()
    if not isinstance(made, Algorithm):
        raise TypeError(f"Policy: got {made!r:.80}; expected an Algorithm, or a function that makes one, such as "
                        "create_algorithm_func(...); what `parl-like export` has written is read by Policy.load(path)")
    alone, name, model = AlgorithmAlone(made), type(made).__name__, made.model
    explores = copy(made.explorer() if explorer is None else explorer)  # what it remembers of episodes is this policy's
    wanted = ["act"] if explores is None or type(explores) is Explorer else [
        *([] if explores.reads is None else [explores.reads]), *explores.needs]
    missing = [one for one in wanted if one not in alone.shapes]
    if model.act_space is None or missing and explores is None:
        raise ValueError(f"Policy: {name} predicts {', '.join(alone.shapes) or 'nothing'}, and no action")
    if missing and explores is not None:
        raise ValueError(f"Policy: {lacks(explores, missing[0], alone.shapes)}")
    about = Description(task=name, earns=model.reward_state, observations=fields_of_space(model.obs_space, "obs"),
                        actions=fields_of_space(model.act_space, "act"))
    return PolicyParts(about, model.obs_space, model.act_space, explores, NetworkComputation(alone, Transforms()))

"""The manifest of an exported policy: what goes in and what comes out, by name, shape, dtype and range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import gymnasium as gym
import msgspec
import numpy as np

from parl_like.values.spec import Spec, leaf_spaces, specs_of

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Dtype = Literal["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of N rows, [N, *shape].

    Attributes:
        name: `obs`, or of a nested observation `obs.goal`, …; `act`; `state.h`, `policy.logits`.
        low, high: Its range: a number, or nested lists of the shape where numbers differ; None: there is no bound.
    """

    name: Annotated[str, msgspec.Meta(max_length=200)]
    shape: Annotated[list[Count], msgspec.Meta(max_length=8)]
    dtype: Dtype
    low: Any = None
    high: Any = None

    @property
    def spec(self) -> Spec:
        """Return it as a spec, without bounds."""
        return Spec(self.name, tuple(self.shape), np.dtype(self.dtype))


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the manifest.

    Attributes:
        kind: What tells its manifest from others.
        experiment, task, step, env, wrappers: Where it is from: the task of the run's experiment, the env steps of its
            checkpoint, the id of its environment, and the wrappers around that, which are no part of it: it gets what they give.
        drawn: Whether its robot draws actions also in evaluations.
        earns: Name of the state that counts the rewards of the episode; empty: none does.
        observations, actions: As the environment has them.
        state: What it remembers, zeros where an episode begins.
        outputs: What it predicts beside the action, such as logits.
        versions: Of the packages that wrote it.
    """

    kind: Literal["parl_like policy"] = "parl_like policy"
    experiment: str = ""
    task: str = ""
    step: Count = 0
    env: str = ""
    wrappers: list[str] = []
    drawn: bool = False
    earns: str = ""
    observations: list[Field] = []
    actions: list[Field] = []
    state: list[Field] = []
    outputs: list[Field] = []
    versions: dict[str, str] = {}


def fields_of(specs: Iterable[Spec]) -> list[Field]:
    """Return the fields of specs, with their bounds."""
    return [Field(spec.name, list(spec.shape), str(spec.dtype), _range(spec.low), _range(spec.high))  # type: ignore[arg-type]
            for spec in specs]


def fields_of_space(space: gym.Space[Any], name: str) -> list[Field]:
    """Return the fields of a space, in its order; of whole choices in the dtype of the space."""
    dtypes = {leaf: part.dtype for leaf, part in leaf_spaces(space, name)}
    return fields_of(Spec(spec.name, spec.shape, np.dtype(dtypes[key] or spec.dtype), spec.low, spec.high)
                     for key, spec in specs_of(space, name).items())


def _range(bound: Any) -> Any:
    if bound is None:
        return None
    array = np.asarray(bound)
    values = array.tolist()
    if array.size and (array == array.ravel()[0]).all():
        values = array.ravel()[0].item()
    return _finite(values)


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if math.isfinite(values) else None

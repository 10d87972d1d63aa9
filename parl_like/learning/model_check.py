"""The check of what an algorithm calls of its model: that it is there and answers in the right shapes, tried out when the task
is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.learning.algorithm import Algorithm
from parl_like.learning.device_copy import fetch
from parl_like.learning.model import ArrayModel
from parl_like.learning.module_modes import WatchedModes
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, Spec, leaves, nest


class ContractError(TypeError):
    """A model does not offer what the algorithm calls, or returns something else."""


def try_out(owner: Callable[[], str], algorithm: Algorithm) -> tuple[dict[str, Array], set[type]]:
    """Predict two rows of zeros (of legal values, where 0 is none): make parameters of lazy layers, and find a model that does
    not fit. The networks are in eval mode afterwards; `AlgorithmRunner` puts back those without modes.

    Args:
        owner: Gives the task's name.

    Returns:
        The outputs, [2, ...] each, and the classes of modules that read their mode (`WatchedModes`).

    Raises:
        ContractError, SpecError: the model does not fit.
    """
    check_methods(algorithm)
    for network in algorithm.networks().values():
        network.eval()
    inputs = algorithm.model.inputs()
    if not inputs or type(algorithm).predict is Algorithm.predict:
        return {}, set()
    on_arrays = isinstance(algorithm.model, ArrayModel)
    rows = Batch(nest({n: spec.legal(2) if on_arrays else torch.from_numpy(spec.legal(2)) for n, spec in inputs.items()}))
    with torch.no_grad(), WatchedModes(algorithm.networks()) as modes:
        algorithm.check_model(rows)
        predicted = algorithm.predict(rows)
        if not isinstance(predicted, Mapping):
            raise ContractError(f"{type(algorithm).__name__}.predict returned {type(predicted).__name__}; expected a mapping, "
                                "such as {'q': …}")
        out = flat_outputs(predicted)
    arrays = fetch(out)
    check_rows(owner, arrays, 2)
    return arrays, modes.readers


def flat_outputs(out: Mapping[str, object]) -> dict[str, object]:
    """Outputs of `predict` by dotted names."""
    flat: dict[str, object] = {}
    for name, value in out.items():
        if type(value) is torch.Tensor:
            flat[name] = value
        else:
            flat.update(leaves(value, name))
    return flat


def check_rows(owner: Callable[[], str], out: Mapping[str, Array], rows: int) -> None:
    """Check that each output of `predict` is [rows, …]; raises SpecError for one that is not."""
    for name, value in out.items():
        if not value.ndim or len(value) != rows:
            spec = Spec(name, value.shape[1:], value.dtype, owner=f"{owner()}, output of predict")
            raise spec.error(f"{value.shape} {value.dtype}", f"the batch has {rows} rows; return one row for each", True)


def check_methods(algorithm: Algorithm) -> None:
    """Raises ContractError unless the model has everything that the algorithm's `calls` names, and is a `Model` at all."""
    model = algorithm.model
    if not hasattr(model, "inputs"):
        raise ContractError(f"{type(algorithm).__name__} has a {type(model).__name__} as its model; expected a parl_like.Model, "
                            "which says its spaces")
    for name in algorithm.calls:
        if not hasattr(model, name):
            have = "have" if " and " in algorithm.fitting_models else "has"
            fitting = f"; {algorithm.fitting_models} {have} it" if algorithm.fitting_models else ""
            raise ContractError(f"{_called(algorithm, name)}, and {type(model).__name__} has no {name}{fitting}")


def answer(algorithm: Algorithm, name: str, *arguments: object) -> Any:
    """Return what the model's method `name` returns; what it raises, such as for a call that does not fit its signature or for
    rows that do not fit its layers, is a ContractError."""
    try:
        return getattr(algorithm.model, name)(*arguments)
    except Exception as error:
        raise ContractError(f"{_called(algorithm, name)}; {type(algorithm.model).__name__}.{name} raised "
                            f"{type(error).__name__}: {error}") from error


def refuse(algorithm: Algorithm, name: str, expected: str, got: object) -> ContractError:
    """The error for an answer of the model's `name` (or of a part of it, `head.log_prob`)."""
    return ContractError(f"{_called(algorithm, name.split('.')[0])}; {type(algorithm.model).__name__}.{name}: expected "
                         f"{expected}, got {got}")


def check_shape(algorithm: Algorithm, name: str, value: object, *shapes: tuple[int, ...], part: str = "") -> None:
    """Raises ContractError unless `value`, the answer of `name` (its field `part`), is a tensor of one of these shapes."""
    got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
    if got not in shapes:
        raise refuse(algorithm, name, f"{part and part + ' '}{' or '.join(map(str, shapes))} for a batch of {shapes[0][0]} rows",
                     got)


def _called(algorithm: Algorithm, name: str) -> str:
    return f"{type(algorithm).__name__} calls {algorithm.calls.get(name, name)} of its model"

"""ArrayPrediction: predictions that one native network makes, from arrays to arrays, past torch.

An algorithm whose `predict` gives out what one method of its model does says so (`gives`). The model says which native network
that is, and how the numbers of its output are read (`native_reader`). The outputs are those of the ordinary way, bit for bit, for
that computes with the same network; and those of a row do not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from parl_like.values.spec import Array

if TYPE_CHECKING:
    from parl_like.learning.algorithm import Algorithm

F = TypeVar("F", bound=Callable[..., Any])


class NativeReader(NamedTuple):
    """The way in which a method of a model is computed from the numbers of one of its native networks.

    Attributes:
        network: Its name among `Model.native`.
        read: [N, n_out] float32, which it may give away → flat output name → [N, …], in memory of their own.
        perception: The module that gives the features of an observation. It hands on vectors as they are, as float32.
    """

    network: str
    read: Callable[[Array], dict[str, Array]]
    perception: torch.nn.Module


class _Given(NamedTuple):
    method: str
    through: tuple[str, ...]


_given: dict[Callable[..., Any], _Given] = {}


def gives(method: str, through: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Mark a `predict` that gives out what `method` of the model does for `obs`, and nothing more. A class that overrides it has
    another one, which is not marked.

    Args:
        through: Methods of the algorithm that it calls, which are marked, too.
    """
    def mark(function: F) -> F:
        _given[function] = _Given(method, through)
        return function

    return mark


class ArrayPrediction:
    """The predictions of an algorithm from arrays to arrays, where it can be had.

    Args:
        algorithm: Whose model is complete.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self._model = algorithm, algorithm.model
        self._kind, self._predict = type(algorithm), type(algorithm).predict
        self._reader = _reader_of(algorithm)

    @property
    def is_native(self) -> bool:
        """Return whether one native network of the model makes them."""
        return self._reader is not None and self._reader.network in self._model.native

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the outputs for [N, …] of each input; None: torch has to make them.

        The caller holds the lock of the parameters.
        """
        reader, algorithm = self._reader, self._algorithm
        if reader is None or len(inputs) != 1:
            return None
        network = self._model.native.get(reader.network)
        if network is None or self._kind.predict is not self._predict or "predict" in algorithm.__dict__:
            return None
        seen = reader.perception.__dict__
        if algorithm.model is not self._model or seen["_forward_hooks"] or seen["_forward_pre_hooks"] or not network.ready():
            return None
        obs = inputs["obs"]
        return reader.read(network.forward(np.ascontiguousarray(obs, np.float32))[0]) if obs.ndim == 2 else None


def _reader_of(algorithm: Algorithm) -> NativeReader | None:
    kind, model = type(algorithm), algorithm.model
    given = _given.get(kind.predict)
    if given is None or "native_reader" not in vars(type(model)) or list(model.inputs()) != ["obs"]:
        return None
    for name in given.through:
        own = _given.get(getattr(kind, name))
        if own is None or own.method != given.method or name in vars(algorithm):
            return None
    reader: NativeReader | None = None if given.method in vars(model) else model.native_reader(given.method)
    return reader

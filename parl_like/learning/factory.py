"""AlgorithmFactory: `Algorithm(Model)` with its settings, which each task builds for itself; Shared: a part that several tasks
have."""

from __future__ import annotations

import copy as copying
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from parl_like.learning.algorithm import Algorithm
from parl_like.learning.schedule import Exponential as Exponential
from parl_like.learning.schedule import Linear as Linear
from parl_like.learning.schedule import Schedule as Schedule
from parl_like.learning.schedule import value_of as value_of
from parl_like.values.batch_leaf import same


class Shared:
    """A model or trunk that several tasks use: built at the first call, the same object at every other.

    Pass it wherever a model, a trunk or a factory is expected; `create_algorithm_func` resolves it when it builds. Exactly one
    optimiser owns the shared parameters: that of the first task, in the robot's order, that holds them.
    """

    def __init__(self, factory: Callable[..., object], *args: object, **kwargs: object) -> None:
        self.factory, self.args, self.kwargs = factory, args, kwargs
        self._built: object = None

    def __call__(self) -> Any:
        if self._built is None:
            self._built = self.factory(*self.args, **self.kwargs)
        return self._built

    def __deepcopy__(self, memo: dict[int, object]) -> Shared:
        return self  # sharing is the point: freezing the arguments of a factory must not split it

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_built": None}


class AlgorithmFactory:
    """A zero-argument function that builds `algorithm_class(model_class(**model_args), **algorithm_args)`, a new one at every
    call (PARL's cloning rule). It is called `create_algorithm_func`.

    An algorithm whose constructor names `model_func` gets `build_model` as that, and calls it as often as it needs models: for a
    reference network, say. `model` comes beside it only where the constructor names that, too.

    The arguments are frozen copies, so changing the dicts afterwards has no effect. Picklable when its classes are importable,
    comparable and printable, so it can travel to a worker and into a log.
    """

    def __init__(self, model_class: Callable[..., Any] | Shared, model_args: Mapping[str, object],
                 algorithm_class: type[Algorithm], algorithm_args: Mapping[str, Any]) -> None:
        self.model, self.algorithm = model_class, algorithm_class
        self.model_args = copying.deepcopy(dict(model_args))
        self.algorithm_args = copying.deepcopy(dict(algorithm_args))

    def build_model(self) -> Any:
        """Return a model of its own, newly initialised; where the model is `Shared`, that one.

        Raises:
            ValueError: a `Shared` model got arguments here.
        """
        if isinstance(self.model, Shared) and self.model_args:
            raise ValueError("create_algorithm_func: a Shared model takes no model_args here; give them to Shared(...)")
        args = {k: v() if isinstance(v, Shared) else copying.deepcopy(v) for k, v in self.model_args.items()}
        return self.model(**args)

    def __call__(self) -> Algorithm:
        args = copying.deepcopy(self.algorithm_args)
        names = inspect.signature(self.algorithm).parameters
        if "model_func" not in names:
            return self.algorithm(self.build_model(), **args)
        args.setdefault("model_func", self.build_model)
        return self.algorithm(self.build_model(), **args) if "model" in names else self.algorithm(**args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AlgorithmFactory) and same(vars(self), vars(other))  # arrays in the arguments have no one `==`

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        model_args, algorithm_args = (", ".join(f"{k}={v!r}" for k, v in args.items())
                                      for args in (self.model_args, self.algorithm_args))
        model = f"{getattr(self.model, '__name__', repr(self.model))}({model_args})"
        return f"{self.algorithm.__name__}({', '.join(filter(None, (model, algorithm_args)))})"


create_algorithm_func = AlgorithmFactory

"""Which settings of an algorithm may be assigned once its task is built: those that it reads as it goes; the others say so."""

from __future__ import annotations

import functools
import inspect
import operator
from numbers import Integral, Real
from typing import Any

from parl_like.interfaces import HelperPort, TrainedAlgorithm
from parl_like.values.errors import unknown
from parl_like.values.ranges import setting_of

ALWAYS = ("adam_eps", "losses", "lr", "max_grad_norm", "model", "moves", "window")
"""Names that the base class and its task give a meaning to, in any algorithm."""


def check_rates(owner: str, lr: object, max_grad_norm: Any) -> None:
    """Raises TypeError or ValueError, where these cannot be a learning rate and a norm at which gradients are clipped."""
    if not callable(lr) and not isinstance(lr, Real):
        raise TypeError(f"{owner}: lr is {lr!r}; expected a number, or a schedule, a function of the steps")
    if isinstance(lr, Real) and not float(lr) >= 0.0:
        raise ValueError(f"{owner}: lr is {lr}; expected a number of at least 0, or a schedule")
    if max_grad_norm is not None and not max_grad_norm > 0.0:
        raise ValueError(f"{owner}: max_grad_norm is {max_grad_norm}; expected a number above 0, or None")


def setting(algorithm: object, value: object) -> Any:
    """A value of a `Loss`: itself, or what the attribute of the algorithm is that it names."""
    return getattr(algorithm, value) if type(value) is str else value


def rate(algorithm: TrainedAlgorithm | None, lr: object) -> Any:
    """A learning rate or schedule of a `Loss`: where the attribute that it names is None, the algorithm's `lr`."""
    value = setting(algorithm, lr)
    return algorithm.lr if value is None and algorithm is not None else value


def guarded(algorithm: object) -> frozenset[str]:
    """Return the names that `check` looks at when they are assigned: the constructor arguments of the library's classes among
    those of the algorithm, but for what a user's own class defines, or names in `own_settings`."""
    kinds = type(algorithm).__mro__
    own = {name for kind in kinds if not _ours(kind) for name in (*vars(kind), *vars(kind).get("own_settings", ()))}
    named = {name for kind in kinds if _ours(kind) for name in _arguments(kind)}
    return frozenset({*ALWAYS, *(named - own)})


def check(algorithm: TrainedAlgorithm, name: str, value: object) -> None:
    """Raises AttributeError where assigning the setting would change nothing; TypeError or ValueError where `value` is no
    learning rate, no norm, or no number of updates."""
    kind: Any = type(algorithm)
    what, nearest = f"{kind.__name__}.{name}", next(one for one in kind.__mro__ if _ours(one))
    mine = "" if kind is nearest or name in ALWAYS else (
        f"; if it is an attribute of your own, write own_settings = ({name!r},) in the class")
    if why := algorithm.fixed_settings().get(name):
        raise AttributeError(f"{what} cannot be assigned once the task is built: {why}{mine}")
    if name not in ALWAYS:
        if kind is nearest and name not in _arguments(nearest):
            raise AttributeError(f"{kind.__name__} does not read {name}: {unknown('setting', name, _arguments(nearest))}")
        if name not in vars(algorithm):
            raise AttributeError(f"{what} cannot be assigned once the task is built: it went into what was built, and is read "
                                 f"no more; build a new one, {kind.__name__}(…, {name}={value!r:.40}){mine}")
    if (known := setting_of(kind, name)) is not None:
        known.check(kind.__name__, value)
    losses = (algorithm.losses or {}).values()
    rates = {loss.lr for loss in losses if type(loss.lr) is str}
    unread = algorithm.losses and ((name == "lr" and all(setting(algorithm, one) is not None for one in rates - {"lr"})
                                    and "lr" not in rates)
                                   or (name == "max_grad_norm" and all(loss.max_grad_norm != name for loss in losses)))
    if unread:
        raise AttributeError(f"{what} cannot be assigned: none of the losses of {kind.__name__} reads it; let one name it, "
                             f"Loss(…, {name}={name!r})")
    if name in {"lr", *rates} and not (value is None and name != "lr"):
        check_rates(kind.__name__, value, None)
    elif name == "max_grad_norm":
        check_rates(kind.__name__, 0.0, value)
    elif name in {loss.every for loss in losses if type(loss.every) is str}:
        check_every(kind.__name__, value)


def explorers_have(name: str) -> str:
    """Why a setting of exploring is none of the algorithm's, once the task is built."""
    return f"each helper has made an explorer of it; assign {name} of agent.helpers[…].explorer, or give the helpers explorer="


def check_every(owner: str, every: object) -> None:
    """Raises ValueError where this is no number of updates."""
    if not isinstance(every, Integral) or every < 1:
        raise ValueError(f"{owner}: every is {every}; expected a whole number of updates, at least 1")


def fixed(why: str) -> Any:
    """Return an attribute of helpers that cannot be assigned once the helper is bound to its task; `why`, and the way out."""
    return _Fixed(why)


def fixed_part(path: str, why: str) -> Any:
    """Return such an attribute that one of the helper's parts holds, such as 'options.extras' (`parl_like.values.parts`)."""
    holder, _, name = path.partition(".")

    def assign(helper: HelperPort, value: object) -> None:
        _refuse_bound(helper, name, why)
        setattr(getattr(helper, holder), name, value)

    return property(operator.attrgetter(path), assign)


def _refuse_bound(helper: HelperPort, name: str, why: str) -> None:
    if helper.__dict__.get("bound"):
        raise AttributeError(f"{helper.where}: {name} of {type(helper).__name__} cannot be assigned once it has joined its task: "
                             f"{why}")


class _Fixed:
    """A descriptor without `__get__`, so reading is as fast as ever."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, helper: HelperPort, value: object) -> None:
        _refuse_bound(helper, self.name, self.why)
        helper.__dict__[self.name] = value


class Alias:
    """A read-only second name of an attribute: the one that PARL's design document prints for it (docs/coming-from/parl.md).

    Args:
        path: The attribute's own name, dotted where it is a part's: `wrapper.trainings`.
    """

    def __init__(self, path: str) -> None:
        self.path, self._read = path, operator.attrgetter(path)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else self._read(instance)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{type(instance).__name__}.{self.name} is PARL's name for {self.path} and is read-only")


def _ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "parl_like"


@functools.cache
def _arguments(kind: type) -> tuple[str, ...]:
    """Names of the constructor's keywords."""
    return tuple(name for name, one in inspect.signature(kind).parameters.items() if one.kind is one.KEYWORD_ONLY)

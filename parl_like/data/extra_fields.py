"""The extra fields of a row beside the transition: what `predict` gave as `policy` and `kept`, and chosen keys of the
environment's `info`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parl_like.data.buffers.fields import is_part
from parl_like.values.spec import Array, Spec

KEPT = "kept"
"""The outputs of `predict` that an update may compute again instead."""

Wanted = Sequence[str] | Mapping[str, object]
"""Keys of `info`, each one number in every step; or each with what stands for it in steps that lack it, which gives its shape and
dtype."""


def info_specs(owner: str, wanted: Wanted) -> dict[str, tuple[Spec, object]]:
    """Key → its column, and what stands for it where it lacks (None: an error). Raises TypeError for what is no such thing."""
    if isinstance(wanted, str) or not all(isinstance(name, str) and name for name in wanted):
        raise TypeError(f"{owner}: store_info is {wanted!r}; expected keys of info, such as ('x',), or a dict from keys to what "
                        "stands for them where they lack: {'x': 0.0}")
    out: dict[str, tuple[Spec, object]] = {}
    for name in wanted:
        instead = np.asarray(wanted[name]) if isinstance(wanted, Mapping) else None
        if instead is not None and instead.dtype.kind not in "biuf":
            raise TypeError(f"{owner}: store_info[{name!r}] is {wanted[name]!r}; expected a number or an array of numbers")  # type: ignore[call-overload]
        own = (np.dtype(np.float64), ()) if instead is None else (instead.dtype, instead.shape)
        out[name] = Spec(f"info.{name}", own[1], own[0]), instead
    return out


class KeptColumns:
    """See the text of this module.

    Args:
        where: Agent and task, for messages.
        policy: Outputs of `predict`, as the helper stores them. Those of `policy` belong to an action that it returned; those of
            `kept` can be computed again, and are zeros in rows of other actions.
        info: See `info_specs`.
        n: Environments of a vector environment; 0: there is one.
    """

    def __init__(self, where: str, policy: Sequence[Spec], info: Mapping[str, tuple[Spec, object]], n: int) -> None:
        self.where, self.policy, self.n = where, tuple(policy), n
        self.info = {name: (spec.owned_by(where), instead) for name, (spec, instead) in info.items()}
        self.specs = (*self.policy, *(spec for spec, _ in info.values()))

    def values(self, act: object, last: tuple[object, Mapping[str, Array] | None, int], info: Mapping[str, object] | None,
               ends: Any) -> tuple[Any, ...]:
        """Return the values of the row with this action. `last` has the action that was predicted last, all outputs
        [N, …], and its row in these.

        Raises:
            ValueError: the action is another one. SpecError: `info` lacks a key, or has something else there.
        """
        made: list[object] = []
        if self.policy:
            predicted, out, row = last
            if act is not predicted or out is None:
                names = ", ".join(spec.name for spec in self.policy if not is_part(spec.name, KEPT))
                if not names:
                    return self._zeros + self._of_info(info, ends)
                raise ValueError(f"{self.where}: predict gives {names} to be stored with its action, and this action is not what "
                                 "it returned last; store that one, or give the helper store_policy=False")
            made += [out[spec.name][row] if row >= 0 else out[spec.name] for spec in self.policy]
        return tuple(made) + self._of_info(info, ends)

    @property
    def _zeros(self) -> tuple[Array, ...]:
        return tuple([spec.zeros(self.n) if self.n else spec.zeros(1)[0] for spec in self.policy])

    def _of_info(self, info: Mapping[str, object] | None, ends: Any) -> tuple[object, ...]:
        info = info or {}
        return tuple([self._rows(name, spec, instead, info, ends) if self.n else self._one(name, spec, instead, info)
                      for name, (spec, instead) in self.info.items()])

    def _lacks(self, spec: Spec, name: str, info: Mapping[str, object]) -> Exception:
        return spec.error(f"info with {', '.join(map(repr, info)) or 'nothing'}", "let every step give it (a wrapper), or say "
                          f"what stands where it lacks: store_info={{{name!r}: 0.0}}")

    def _one(self, name: str, spec: Spec, instead: object, info: Mapping[str, object]) -> object:
        if name in info:
            return self._fitting(spec, info[name], False)
        if instead is None:
            raise self._lacks(spec, name, info)
        return instead

    def _rows(self, name: str, spec: Spec, instead: object, info: Mapping[str, object], ends: Array) -> Array:
        """[n, …] of the info of a vector environment: that of a step which ended an episode may stand in `final_info`."""
        out, lacking = spec.zeros(self.n), np.ones(self.n, bool)
        final = info.get("final_info")
        for given, rows in ((info, ~ends if final is not None else np.ones(self.n, bool)), (final, ends)):
            if isinstance(given, Mapping) and name in given:
                there = rows & np.asarray(given.get(f"_{name}", np.ones(self.n, bool)), bool)
                if there.any():
                    value = np.asarray(given[name])[there]
                    out[there] = self._fitting(spec, np.stack(list(value)) if value.dtype == object else value, True)
                    lacking &= ~there
        if lacking.any():
            if instead is None:
                raise self._lacks(spec, name, info)
            out[lacking] = instead
        return out

    def _fitting(self, spec: Spec, value: object, rows: bool) -> Array:
        array = np.asarray(value)
        fits = array.shape[int(rows):] == spec.shape and array.dtype.kind in "biuf" and not (
            spec.dtype.kind in "iu" and array.dtype.kind == "f" or spec.dtype.kind == "b" and array.dtype.kind != "b")
        if not fits:
            raise spec.error(f"{array.shape} {array.dtype}", "say shape and dtype by an example: store_info={'key': example}",
                             rows)
        return array.astype(spec.dtype)


def policy_specs(arrays: Mapping[str, Array]) -> tuple[Spec, ...]:
    """Return the columns for a prediction's outputs `policy.*` and `kept.*`, of which these are rows [N, …]."""
    return tuple(Spec(name, value.shape[1:], value.dtype) for name, value in arrays.items()
                 if is_part(name, "policy") or is_part(name, KEPT))

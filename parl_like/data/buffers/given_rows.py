"""GivenRows: rows as users give them to `add`, on their way to the fields of a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from parl_like.data.buffers.fields import FLAGS, convert_rows, infer
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, Spec

OWNER = "replay buffer"
REQUIRED = ("obs", "act", "rew", "terminated", "truncated")


class GivenRows:
    """Rows whose fields may be new, missing, nested or loosely typed.

    Args:
        batch: The rows, nested or not.
        flat: Their leaves by dotted names; with `many` [n, …], else of one row.
        n: Number of rows.
        many: Whether leaves have an axis of rows.
    """

    def __init__(self, batch: Batch | Mapping[str, object], flat: dict[str, object], n: int, many: bool) -> None:
        self.batch, self.flat, self.n, self.many = batch, flat, n, many

    def declare(self, owner: object, known: Sequence[Spec], rew_dtype: np.dtype[np.generic]) -> tuple[Spec, ...]:
        """Return the known fields, and then those that are new here.

        Flags written 0 and 1 become bools, and a reward of another float type becomes that of its field, or `rew_dtype`.

        Raises:
            ValueError: a required field is missing, or `done` is not what the flags say; `owner` is named.
            SpecError: a new field holds no numbers.
        """
        self._check(owner, known)
        flat, specs = self.flat, {spec.name: spec for spec in known}
        for name in {*FLAGS, "rew"} & flat.keys():
            array, own = np.asarray(flat[name]), specs["rew"].dtype if "rew" in specs else rew_dtype
            if name == "rew" and own.kind == "f" and array.dtype.kind in "biuf":
                flat[name] = array.astype(own)
            elif name != "rew" and array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
                flat[name] = array.astype(bool)
        new = [infer(OWNER, name, value, self.many) for name, value in flat.items() if name not in specs]
        return *known, *(replace(spec, dtype=np.dtype(bool)) if spec.name in FLAGS else spec for spec in new)

    def _check(self, owner: object, known: Sequence[Spec]) -> None:
        """Required fields are there; `done` is taken out."""
        flat = self.flat
        tops = dict.fromkeys(name.partition(".")[0] for name in flat)
        stored = {spec.name.partition(".")[0] for spec in known}
        missing = [name for name in REQUIRED if name not in tops and (not stored or name in stored)]
        if missing:
            raise ValueError(f"{owner!r}: add needs {missing[0]!r}; got {', '.join(tops) or 'nothing'} (done is computed, never "
                             "given)")
        if "done" in flat:
            given = np.asarray(flat.pop("done"))
            if not np.array_equal(given, np.logical_or(*(np.asarray(flat[name]) for name in FLAGS))):
                raise ValueError(f"{owner!r}: field 'done' disagrees with terminated or truncated; leave it out, it is computed")

    def columns(self, specs: Sequence[Spec]) -> dict[str, Array]:
        """Return the rows as [n, …] of these fields; what they lack is zero.

        Raises:
            SpecError: a value does not fit its field, or has another number of rows.
        """
        flat = self.flat
        if not self.many:
            flat = {spec.name: spec.convert(flat[spec.name])[None] for spec in specs if spec.name in flat}
        return {spec.name: convert_rows(spec, flat[spec.name], self.n) if spec.name in flat else spec.zeros(self.n)
                for spec in specs}

    def empty_groups(self) -> list[str]:
        """Return the names of groups without a leaf, such as `info={}`."""
        groups = ((key, part) for key, part in self.batch.items() if isinstance(part, (Batch, Mapping)))
        return [str(key) for key, part in groups if not len(tuple(part.keys()))]

"""States of random generators as plain values and arrays."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from parl_like.data.storage.tree_encoding import refusal
from parl_like.values.plain import Plain
from parl_like.values.spec import Array

if TYPE_CHECKING:
    import torch


log = logging.getLogger(__name__)


class Borrowed:
    """The number of times that updates have borrowed torch's global generator, the only one that dropout knows, and given it
    back."""

    begun = ended = 0


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Have torch's global generators draw from a seed within, such as initial values; the CPU's goes on afterwards as if nothing
    had been drawn."""
    import torch

    with torch.random.fork_rng(devices=[]):
        if torch.cuda.is_available():
            torch.manual_seed(seed)
        else:  # torch.manual_seed would keep each call, with its stack, for devices that are not there
            torch.default_generator.manual_seed(seed)
        yield


def rng_state(generator: np.random.Generator) -> dict[str, str | int]:
    """The state of a PCG64 generator as named integers: kind, state and inc (128 bits), has_uint32, uinteger (32 bits).

    Raises:
        TypeError: another kind of bit generator.
    """
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"expected a generator over PCG64, got {state['bit_generator']}; use numpy.random.default_rng(seed)")
    numbers = {**state["state"], "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}
    return {"kind": "PCG64", **{name: int(number) for name, number in numbers.items()}}


def set_rng_state(generator: np.random.Generator, state: Plain) -> None:
    """Puts a generator into a state of `rng_state`. Raises ArchiveError where it is none, and TypeError like `rng_state`."""
    rng_state(generator)
    saved = state if isinstance(state, Mapping) else {}
    if isinstance(inner := saved.get("state"), Mapping):  # NumPy's own form, as buffers were saved once
        saved = {"kind": saved.get("bit_generator"), **inner, **{k: saved.get(k) for k in ("has_uint32", "uinteger")}}
    bits = {"state": 128, "inc": 128, "has_uint32": 1, "uinteger": 32}
    numbers = {name: n for name in bits if type(n := saved.get(name)) is int and 0 <= n < 2 ** bits[name]}
    fits = saved.keys() == {"kind", *bits} and saved["kind"] == "PCG64" and len(numbers) == len(bits)
    if not fits or numbers["inc"] % 2 == 0:
        expected = f"kind 'PCG64' and integers of {bits} bits, inc odd"
        raise refusal("random state", expected, str(saved or state)[:200], "use a state of rng_state")
    own = {"state": {"state": numbers["state"], "inc": numbers["inc"]}}
    generator.bit_generator.state = {"bit_generator": "PCG64", **numbers, **own}


STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""Length of a torch generator's state by its device."""


def torch_rng_state(generator: torch.Generator) -> Array:
    """The state of a torch generator as a uint8 array: [5056] on the CPU, [16] on CUDA."""
    return np.array(generator.get_state().numpy())


def set_torch_rng_state(generator: torch.Generator, state: Array) -> None:
    """Put a torch generator into a state of `torch_rng_state`, uint8 [n].

    A state of another device cannot be continued: the generator begins with a seed that is made of it, and a warning says so.

    Raises:
        ArchiveError: dtype, length or content are those of no state.
    """
    import torch

    length = len(generator.get_state())
    got = f"{getattr(state, 'dtype', type(state).__name__)} {getattr(state, 'shape', '')}"
    try:
        if not isinstance(state, np.ndarray) or state.dtype != np.uint8 or state.ndim != 1:
            raise RuntimeError(got)
        if len(state) != length and len(state) in STATE_BYTES.values():
            log.warning("the saved random state is that of another device than %s; draws go on from a seed that is made of it, "
                        "so the run is not the one that would have been", generator.device)
            generator.manual_seed(int.from_bytes(hashlib.sha256(state.tobytes()).digest()[:8], "little") >> 1)
            return
        if len(state) != length:
            raise RuntimeError(got)
        generator.set_state(torch.from_numpy(state.copy()))
    except RuntimeError as error:
        mend = f"use a state of torch_rng_state from a generator on {generator.device}"
        raise refusal("random state", f"uint8 ({length},)", str(error)[:200], mend) from None

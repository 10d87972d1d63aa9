"""Returns and advantages along time.

Row t is one experience: the action at t, its reward, and what followed. Arrays are [T, B], time first, then rows that never meet; [T]
is one such column, and further axes are more columns. Flat batches (segments of several agents behind each other) are [T] with `last`
at the end of each segment.

In all functions

    discount    γ, or 0 where the row *terminated* its episode: nothing follows. A truncated episode goes on unseen, so it keeps γ.
    last        The time chain is cut after this row: terminated, truncated, or the last row that there is. The final row of an array
                is cut whether it says so or not.
    value_next  V of the observation that the action led to (before any reset). At a truncated row, of the true final observation.

The result has the dtype of `rew` where that is float32, else float64; sums are kept in double. Each function has a twin `*_reference`
in plain NumPy, which says the same slowly and is what the tests trust.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data import _returns
from parl_like.spec import Array

__all__ = [
    "discounted_return",
    "discounted_return_reference",
    "gae",
    "gae_reference",
    "lambda_return",
    "lambda_return_reference",
    "n_step_return",
    "n_step_return_reference",
    "next_values",
    "next_values_reference",
]


def lambda_return(
    rew: npt.ArrayLike, discount: npt.ArrayLike, value_next: npt.ArrayLike, last: npt.ArrayLike, lam: float
) -> Array:
    """TD(λ) targets.

        G[t] = rew[t] + discount[t] · ((1 − λ[t]) · value_next[t] + λ[t] · G[t+1])        (Sutton & Barto 2018, section 12.3)

    with λ[t] = 0 where `last[t]`, and value_next of the final row in place of the G after it.

    Args:
        rew: [T, B] float. Reward of the action at row t, in environment units.
        discount: [T, B] float in [0, 1].
        value_next: [T, B] float.
        last: [T, B] bool.
        lam: λ in [0, 1]. 0: one-step targets. 1: the rewards themselves, bootstrapped only where the chain is cut.

    Returns:
        [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0; λ is outside [0, 1].
        TypeError: `last` is not bool.
    """
    (rews, discounts, nexts), lasts, out, shape = _columns(
        "lambda_return", last, rew=rew, discount=discount, value_next=value_next
    )
    _returns.lambda_return(rews, discounts, nexts, lasts, _fraction("lambda_return", "lam", lam), out)
    return out.reshape(shape)


def lambda_return_reference(rew: Array, discount: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`lambda_return` as its formula says."""
    target = value_next[-1]
    targets = []
    for t in reversed(range(len(rew))):
        mix = np.where(last[t], 0.0, lam)
        target = rew[t] + discount[t] * ((1.0 - mix) * value_next[t] + mix * target)
        targets.append(target)
    return np.stack(targets[::-1])


def discounted_return(
    rew: npt.ArrayLike, discount: npt.ArrayLike, last: npt.ArrayLike, value_next: npt.ArrayLike | None = None
) -> Array:
    """Sum of the discounted rewards up to the cut, and the value of what follows it.

        G[t] = rew[t] + discount[t] · (value_next[t] where the chain is cut after t, else G[t+1])

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        last: [T, B] bool.
        value_next: [T, B] float, read at cut rows only; None for zeros: an unfinished episode then counts what it has earned so far.

    Returns:
        [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0.
        TypeError: `last` is not bool.
    """
    values = np.zeros(np.shape(rew)) if value_next is None else value_next
    (rews, discounts, nexts), lasts, out, shape = _columns(
        "discounted_return", last, rew=rew, discount=discount, value_next=values
    )
    _returns.lambda_return(rews, discounts, nexts, lasts, 1.0, out)
    return out.reshape(shape)


def discounted_return_reference(rew: Array, discount: Array, last: Array, value_next: Array | None = None) -> Array:
    """`discounted_return` as its formula says."""
    out = np.zeros_like(rew)
    after = np.zeros_like(rew) if value_next is None else value_next
    for t in reversed(range(len(rew))):
        following = after[t] if t == len(rew) - 1 else np.where(last[t], after[t], out[t + 1])
        out[t] = rew[t] + discount[t] * following
    return out


def gae(
    rew: npt.ArrayLike,
    discount: npt.ArrayLike,
    value: npt.ArrayLike,
    value_next: npt.ArrayLike,
    last: npt.ArrayLike,
    lam: float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16).

        δ[t] = rew[t] + discount[t] · value_next[t] − value[t]
        A[t] = δ[t] + discount[t] · λ · A[t+1],    without the second term where `last[t]`

    A + value is `lambda_return` of the same rows, if value_next[t] is value[t+1] inside a segment (see `next_values`).

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        value: [T, B] float. V of the observation that row t acted on.
        value_next: [T, B] float.
        last: [T, B] bool.
        lam: λ in [0, 1].

    Returns:
        Advantages [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0; λ is outside [0, 1].
        TypeError: `last` is not bool.
    """
    (rews, discounts, values, nexts), lasts, out, shape = _columns(
        "gae", last, rew=rew, discount=discount, value=value, value_next=value_next
    )
    _returns.gae(rews, discounts, values, nexts, lasts, _fraction("gae", "lam", lam), out)
    return out.reshape(shape)


def gae_reference(rew: Array, discount: Array, value: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`gae` as its formula says."""
    delta: Array = rew + discount * value_next - value
    out = np.zeros_like(delta)
    advantage = np.zeros_like(delta[0])
    for t in reversed(range(len(rew))):
        advantage = out[t] = delta[t] + discount[t] * lam * np.where(last[t], 0.0, advantage)
    return out


def next_values(value: npt.ArrayLike, last: npt.ArrayLike, boot: npt.ArrayLike) -> Array:
    """value_next of flat rows, when only the cut rows had their next observation valued.

        value_next[t] = value[t+1],    or the next entry of `boot` where `last[t]`

    Args:
        value: [T] float. V of each row's own observation.
        last: [T] bool; the final row must be last.
        boot: [number of last rows] float. V of the observation after each last row, in the order of the rows.

    Returns:
        [T] of the dtype of `value`, newly allocated.

    Raises:
        ValueError: not [T]; the final row is not last; `boot` has another length than there are last rows.
        TypeError: `last` is not bool.
    """
    values, boots = np.asarray(value), np.asarray(boot)
    cuts = _flags("next_values", last)
    if values.ndim != 1 or cuts.shape != values.shape or len(values) < 1:
        raise ValueError(f"next_values: `value` is {values.shape} and `last` {cuts.shape}; expected both [T], T ≥ 1: flat rows")
    if not cuts[-1]:
        raise ValueError(
            "next_values: the final row is not `last`, so no value follows it; set last[-1] and add its value to `boot`"
        )
    n_cuts = int(np.count_nonzero(cuts))
    if boots.shape != (n_cuts,):
        raise ValueError(f"next_values: `boot` has shape {boots.shape}; expected one value per last row: ({n_cuts},)")
    out = np.empty_like(values)
    out[:-1] = values[1:]
    out[cuts] = boots
    return out


def next_values_reference(value: Array, last: Array, boot: Array) -> Array:
    """`next_values` row by row."""
    following = iter(boot)
    return np.array([next(following) if last[t] else value[t + 1] for t in range(len(value))], value.dtype)


def n_step_return(rew: npt.ArrayLike, valid: npt.ArrayLike, gamma: float) -> tuple[Array, Array]:
    """Discounted sum of the first rewards of each row, and the weight of the value that follows them.

        G[i] = Σ γ^k · rew[i, k] over k < valid[i],    scale[i] = γ^valid[i]

    The n-step target is G + scale · V of the observation after the last reward counted, or G alone where that reward's row terminated.

    Args:
        rew: [N, n] float. Rewards of n consecutive rows, n ≥ 1; those from `valid` on are not read.
        valid: [N] int in 0 … n. How many of them belong together: counting stops with the row that ends the episode or the data.
        gamma: γ in [0, 1].

    Returns:
        G [N] and scale [N].

    Raises:
        ValueError: shapes do not fit; a count is outside 0 … n; γ is outside [0, 1].
        TypeError: `valid` is not an integer array.
    """
    rews, counts = np.asarray(rew), np.asarray(valid)
    if rews.ndim != 2 or rews.shape[1] < 1 or counts.shape != rews.shape[:1]:
        raise ValueError(f"n_step_return: `rew` is {rews.shape} and `valid` {counts.shape}; expected [N, n] with n ≥ 1, and [N]")
    if counts.dtype.kind not in "iu":
        raise TypeError(f"n_step_return: `valid` is {counts.dtype}; expected an integer array of counts: valid.astype('int64')")
    if counts.size and (counts.min() < 0 or counts.max() > rews.shape[1]):
        raise ValueError(
            f"n_step_return: `valid` lies in [{counts.min()}, {counts.max()}]; expected counts in [0, {rews.shape[1]}]"
        )
    dtype = _dtype_of(rews)
    out, scale = np.empty(len(rews), dtype), np.empty(len(rews), dtype)
    _returns.n_step_return(
        np.ascontiguousarray(rews, dtype),
        np.ascontiguousarray(counts, np.int64),
        _fraction("n_step_return", "gamma", gamma),
        out,
        scale,
    )
    return out, scale


def n_step_return_reference(rew: Array, valid: Array, gamma: float) -> tuple[Array, Array]:
    """`n_step_return` as its formula says."""
    sums = [sum(gamma**k * row[k] for k in range(m)) for row, m in zip(rew, valid, strict=True)]
    return np.array(sums, rew.dtype), np.array([gamma ** int(m) for m in valid], rew.dtype)


def _columns(verb: str, last: npt.ArrayLike, **floats: npt.ArrayLike) -> tuple[list[Array], Array, Array, tuple[int, ...]]:
    """Checks equal shapes like `rew`. Gives the float arrays and `last` in C order as [T, columns], room for the result, and its shape."""
    shape = np.shape(floats["rew"])
    for name, value in {**floats, "last": last}.items():
        if np.shape(value) != shape or not shape or shape[0] < 1:
            raise ValueError(f"{verb}: `{name}` has shape {np.shape(value)}; expected [T, B] or [T] like `rew` {shape}, T ≥ 1")
    dtype = _dtype_of(np.asarray(floats["rew"]))
    flat = (shape[0], int(np.prod(shape[1:], dtype=np.int64)))
    arrays = [np.ascontiguousarray(value, dtype).reshape(flat) for value in floats.values()]
    return arrays, np.ascontiguousarray(_flags(verb, last)).reshape(flat).view(np.uint8), np.empty(flat, dtype), shape


def _flags(verb: str, last: npt.ArrayLike) -> Array:
    flags = np.asarray(last)
    if flags.dtype.kind != "b":  # a float here is most likely a discount in the wrong place
        raise TypeError(f"{verb}: `last` is {flags.dtype}; expected bool: last.astype(bool)")
    return flags


def _dtype_of(rew: Array) -> np.dtype[Any]:
    return rew.dtype if rew.dtype == np.float32 else np.dtype(np.float64)


def _fraction(verb: str, name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{verb}: `{name}` is {value}; expected a number in [0, 1]")
    return float(value)

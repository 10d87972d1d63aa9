"""Returns and advantages along time.

Row t is one experience: the action at t, its reward, and what followed. Arrays are [T, B], time first, then rows that never meet;
[T] is one such column, and further axes are more columns. Flat batches (segments of several agents behind each other) are [T]
with `last` at the end of each segment.

In all functions but `n_step_return`, which takes windows of rows as tensors, on whatever device they are,

    rew         float. The reward of the action at row t, in environment units.
    discount    float in [0, 1]: γ, or 0 where the row *terminated* its episode: nothing follows. A truncated episode goes on
                unseen: γ.
    value       float. V of the observation that row t acted on.
    value_next  float. V of the observation that the action led to (before any reset). At a truncated row, of the true final
                observation.
    last        bool. The time chain is cut after this row: terminated, truncated, or the last row that there is. The final row
                of an array is cut whether it says so or not.
    log_ratio   float. log π(a|s) − log μ(a|s) of the action that row t took: π the policy that is learned about, μ the one that
                acted.

Results are newly allocated, of the dtype of `rew` where that is float32, else float64; sums are kept in double. NumPy arrays in C
order whose floats are all of that dtype are read where they are; anything else is copied first. Raised are ValueError where
shapes differ, T is 0 or a number is out of its range, and TypeError where `last` is not bool. The tests hold each function
against a slow twin, `tests/fakes/return_twins.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from parl_like.data import _returns
from parl_like.values.spec import Array

if TYPE_CHECKING:
    from torch import Tensor


def lambda_return(rew: ArrayLike, discount: ArrayLike, value_next: ArrayLike, last: ArrayLike, lam: float) -> Array:
    """TD(λ) targets [T, B].

        G[t] = rew[t] + discount[t] · ((1 − λ[t]) · value_next[t] + λ[t] · G[t+1])        (Sutton & Barto 2018, section 12.3)

    with λ[t] = 0 where `last[t]`, and value_next of the final row in place of the G after it. λ = `lam` is in [0, 1]. 0: one-step
    targets. 1: the rewards themselves, bootstrapped only where the chain is cut.
    """
    numbers = (_fraction("lambda_return", "lam", lam),)
    return _run(_returns.lambda_return, "rew discount value_next", (rew, discount, value_next), last, numbers=numbers)[0]


def discounted_return(rew: ArrayLike, discount: ArrayLike, last: ArrayLike, value_next: ArrayLike | None = None) -> Array:
    """Sum of the discounted rewards up to the cut, and the value of what follows it: [T, B].

        G[t] = rew[t] + discount[t] · (value_next[t] where the chain is cut after t, else G[t+1])

    value_next is read at cut rows only; None stands for zeros: an unfinished episode then counts what it has earned so far.
    """
    values = np.zeros(np.shape(rew), _dtype_of(np.asarray(rew))) if value_next is None else value_next
    floats = (rew, discount, values)
    return _run(_returns.lambda_return, "rew discount value_next", floats, last, numbers=(1.0,), verb="discounted_return")[0]


def gae(
    rew: ArrayLike, discount: ArrayLike, value: ArrayLike, value_next: ArrayLike, last: ArrayLike, lam: float
) -> Array:
    """Generalised advantage estimates [T, B] (Schulman et al. 2016, equation 16).

        δ[t] = rew[t] + discount[t] · value_next[t] − value[t]
        A[t] = δ[t] + discount[t] · λ · A[t+1],    without the second term where `last[t]`

    with λ = `lam` in [0, 1]. A + value is `lambda_return` of the same rows, if value_next[t] is value[t+1] inside a segment (see
    `next_values`).
    """
    floats = (rew, discount, value, value_next)
    return _run(_returns.gae, "rew discount value value_next", floats, last, numbers=(_fraction("gae", "lam", lam),))[0]


def vtrace(
    rew: ArrayLike, discount: ArrayLike, value: ArrayLike, value_next: ArrayLike, log_ratio: ArrayLike, last: ArrayLike,
    *, rho_bar: float = 1.0, c_bar: float = 1.0, lam: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and advantages of rows that another policy took (Espeholt et al. 2018, equation 1 and section 4.2).

        ρ[t] = min(ρ̄, exp log_ratio[t]),    c[t] = λ · min(c̄, exp log_ratio[t])
        δ[t] = ρ[t] · (rew[t] + discount[t] · value_next[t] − value[t])
        v[t] = value[t] + x[t],    x[t] = δ[t] + discount[t] · c[t] · x[t+1],    x[t+1] = 0 where `last[t]`
        A[t] = ρ[t] · (rew[t] + discount[t] · (value_next[t] + x[t+1]) − value[t])

    value_next[t] + x[t+1] is v[t+1] if value_next[t] is value[t+1] inside a segment. Where π = μ, v is `lambda_return`.

    Args:
        rho_bar: ρ̄ ≥ c̄, may be infinite. Decides which policy's values are learned: π's own if infinite, μ's as it goes to 0.
        c_bar: c̄ ≥ 0. Bounds the variance, and with it the speed; it does not change what is learned.
        lam: λ in [0, 1].

    Returns:
        v [T, B], the targets of the value function, and A [T, B], the weights of ∇ log π.

    Raises:
        ValueError: not 0 ≤ c_bar ≤ rho_bar, `lam` is outside [0, 1], or shapes differ. TypeError: `last` is not bool.
    """
    if not 0.0 <= c_bar <= rho_bar:
        raise ValueError(f"vtrace: `c_bar` is {c_bar} and `rho_bar` {rho_bar}; expected 0 ≤ c_bar ≤ rho_bar")
    numbers = (_fraction("vtrace", "lam", lam), float(rho_bar), float(c_bar))
    with np.errstate(over="ignore"):  # an infinite ratio is cut off
        ratio = np.exp(log_ratio)
    floats, names = (rew, discount, value, value_next, ratio), "rew discount value value_next log_ratio"
    targets, advantages = _run(_returns.vtrace, names, floats, last, numbers=numbers, results=2)
    return targets, advantages


def next_values(value: ArrayLike, last: ArrayLike, boot: ArrayLike) -> Array:
    """value_next of flat rows, when only the cut rows had their next observation valued.

        value_next[t] = value[t+1],    or the next entry of `boot` where `last[t]`

    Args:
        value: [T] float.
        last: [T] bool; the final row must be last.
        boot: [number of last rows] float. V of the observation after each last row, in the order of the rows.

    Returns:
        [T] of the dtype of `value`.

    Raises:
        ValueError: `value` and `last` are not both [T], the final row is not last, or `boot` has not one entry per last row.
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


def n_step_return(rew: Tensor, discount: Sequence[float] | Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the discounted sum of the rewards of each window of n rows, and the weight of the value that follows them.

        G = Σ_{k<m} (Π_{j<k} d_j) · r_k,    weight = Π_{j<m} d_j        (Sutton & Barto 2018, equation 7.1)

    The n-step target is G + weight · V of the observation after the m-th row. All n-step returns of the library are made here.

    Args:
        rew: [..., n] float, n ≥ 1. 0 from row m on; behind a row with discount 0 it may be anything.
        discount: Tensor [..., n], the d of each row, 1 from row m on, and 0 where nothing follows; or the powers γ⁰ … γⁿ of
            one γ that all rows have.
        valid: [...] int, the m of each window, 0 … n. It is read where `discount` is given as powers.

    Returns:
        G and weight, both [...], where `rew` is, with its dtype.

    Raises:
        ValueError: the last axes do not fit, or powers come without `valid`.
    """
    n = rew.shape[-1]
    if isinstance(discount, Sequence):
        if len(discount) != n + 1 or valid is None:
            raise ValueError(f"n_step_return: `rew` is {tuple(rew.shape)}, with {len(discount)} powers and "
                             f"{'no ' if valid is None else ''}`valid`; expected {n + 1} powers γ⁰ … γⁿ, and `valid`")
        powers = rew.new_tensor(discount)  # one weight for all windows: one product with a matrix
        return rew @ powers[:-1], powers[valid]
    if discount.shape != rew.shape or not n:
        raise ValueError(f"n_step_return: `rew` is {tuple(rew.shape)} and `discount` {tuple(discount.shape)}; expected both "
                         "[..., n], n ≥ 1")
    weight = discount.cumprod(-1)
    before = weight[..., :-1]
    later = (before * rew[..., 1:]).where(before > 0, 0.0)  # chosen, not multiplied: what comes after an end may be NaN
    return rew[..., 0] + later.sum(-1), weight[..., -1]


def _run(
    kernel: Callable[..., None], names: str, floats: tuple[ArrayLike, ...], last: ArrayLike, *, numbers: tuple[float, ...],
    verb: str = "", results: int = 1,
) -> list[Array]:
    """The kernel's results.

    Kernels refuse what they cannot read in place; only then is each array looked at, and refused by name or copied. At a few
    thousand rows a look at each would take as long as the kernel.
    """
    rew = floats[0]
    if type(rew) is np.ndarray:
        try:
            out = [np.empty(rew.shape, rew.dtype)]
            if results == 2:
                out.append(np.empty(rew.shape, rew.dtype))
            kernel(*floats, last, *numbers, *out)
            return out
        except (TypeError, ValueError):
            pass
    verb, shape = verb or kernel.__name__, np.shape(rew)
    for name, value in zip([*names.split(), "last"], [*floats, last], strict=True):
        if np.shape(value) != shape or not shape or shape[0] < 1:
            raise ValueError(f"{verb}: `{name}` has shape {np.shape(value)}; expected [T, B] or [T] like `rew` {shape}, T ≥ 1")
    dtype = _dtype_of(np.asarray(rew))
    out = [np.empty(shape, dtype) for _ in range(results)]
    kernel(*(np.require(x, dtype, ["C", "A"]) for x in floats), np.require(_flags(verb, last), None, ["C"]), *numbers, *out)
    return out


def _flags(verb: str, last: ArrayLike) -> Array:
    flags = np.asarray(last)
    if flags.dtype.kind != "b":  # a float here is most likely a discount in the wrong place
        raise TypeError(f"{verb}: `last` is {flags.dtype}; expected bool: last.astype(bool)")
    return flags


def _dtype_of(rew: Array) -> np.dtype[np.generic]:
    return rew.dtype if rew.dtype == np.float32 else np.dtype(np.float64)


def _fraction(verb: str, name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{verb}: `{name}` is {value}; expected a number in [0, 1]")
    return float(value)

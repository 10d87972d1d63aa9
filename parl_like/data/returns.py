"""Returns and advantages along time.

Row t is one experience: the action at t, its reward, and what followed. Arrays are [T, B], time first, then rows that never meet;
[T] is one such column, and further axes are more columns. Flat batches (segments of several agents behind each other) are [T]
with `last` at the end of each segment.

In all functions

    discount    γ, or 0 where the row *terminated* its episode: nothing follows. A truncated episode goes on unseen: γ.
    last        The time chain is cut after this row: terminated, truncated, or the last row that there is. The final row of an
                array is cut whether it says so or not.
    value_next  V of the observation that the action led to (before any reset). At a truncated row, of the true final observation.

    log_ratio   log π(a|s) − log μ(a|s) of the action that row t took: π the policy that is learned about, μ the one that acted.

The result has the dtype of `rew` where that is float32, else float64; sums are kept in double. NumPy arrays in C order whose
floats are all of that dtype are read where they are; anything else is copied first. Each function has a twin `*_reference` in
plain NumPy, which says the same slowly and is what the tests trust.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
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
    "n_step_targets",
    "n_step_targets_reference",
    "next_values",
    "next_values_reference",
    "retrace",
    "retrace_reference",
    "vtrace",
    "vtrace_reference",
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
    floats = (rew, discount, value_next)
    numbers = (_fraction("lambda_return", "lam", lam),)
    return _run(_returns.lambda_return, "lambda_return", "rew discount value_next", floats, last, numbers)[0]


def lambda_return_reference(rew: Array, discount: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`lambda_return` as its formula says."""
    out = np.zeros_like(rew)
    for t in reversed(range(len(rew))):
        cut = last[t] if t < len(rew) - 1 else True
        # By choice and not by weights of 0, so that nothing from over a cut counts, not even an infinity.
        mixed = 0.0 if cut is True else out[t + 1] if lam == 1.0 else (1.0 - lam) * value_next[t] + lam * out[t + 1]
        out[t] = rew[t] + discount[t] * np.where(cut, value_next[t], mixed)
    return out


def discounted_return(
    rew: npt.ArrayLike, discount: npt.ArrayLike, last: npt.ArrayLike, value_next: npt.ArrayLike | None = None
) -> Array:
    """Sum of the discounted rewards up to the cut, and the value of what follows it.

        G[t] = rew[t] + discount[t] · (value_next[t] where the chain is cut after t, else G[t+1])

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        last: [T, B] bool.
        value_next: [T, B] float, read at cut rows only; None for zeros: an unfinished episode then counts what it has earned so
            far.

    Returns:
        [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0.
        TypeError: `last` is not bool.
    """
    values = np.zeros(np.shape(rew), _dtype_of(np.asarray(rew))) if value_next is None else value_next
    floats = (rew, discount, values)
    return _run(_returns.lambda_return, "discounted_return", "rew discount value_next", floats, last, (1.0,))[0]


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
    discount: npt.ArrayLike, value: npt.ArrayLike, value_next: npt.ArrayLike,
    last: npt.ArrayLike, lam: float,
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
    floats = (rew, discount, value, value_next)
    return _run(_returns.gae, "gae", "rew discount value value_next", floats, last, (_fraction("gae", "lam", lam),))[0]


def gae_reference(rew: Array, discount: Array, value: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`gae` as its formula says."""
    delta: Array = rew + discount * value_next - value
    out = np.zeros_like(delta)
    advantage = np.zeros_like(delta[0])
    for t in reversed(range(len(rew))):
        advantage = out[t] = delta[t] + discount[t] * lam * np.where(last[t], 0.0, advantage)
    return out


def n_step_targets(
    rew: npt.ArrayLike, discount: npt.ArrayLike, value_next: npt.ArrayLike, last: npt.ArrayLike, n: int
) -> Array:
    """n-step targets (Sutton & Barto 2018, equation 7.1).

        G[t] = Σ_{k<m} (Π_{j<k} discount[t+j]) · rew[t+k]  +  (Π_{j<m} discount[t+j]) · value_next[t+m−1]

    with m = n, or fewer: counting stops with the first row that is cut. `n_step_return` does it for windows sampled from a
    buffer.

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        value_next: [T, B] float, read at the last row counted only.
        last: [T, B] bool.
        n: Rewards at most, ≥ 1. 1: one-step targets. T or more: `discounted_return`. The time it takes grows with n until then.

    Returns:
        [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0; n < 1.
        TypeError: `last` is not bool; n is not an integer.
    """
    count = operator.index(n)
    if count < 1:
        raise ValueError(f"n_step_targets: `n` is {n}; expected at least 1 reward")
    floats = (rew, discount, value_next)
    numbers = (min(count, 2**62),)  # the kernel counts in 64 bits
    return _run(_returns.n_step_targets, "n_step_targets", "rew discount value_next", floats, last, numbers)[0]


def n_step_targets_reference(rew: Array, discount: Array, value_next: Array, last: Array, n: int) -> Array:
    """`n_step_targets`, each target for itself."""
    out = np.zeros_like(rew)
    for at in np.ndindex(rew.shape):
        weight, (t, *column) = 1.0, at
        for s in range(t, min(t + n, len(rew))):
            row = (s, *column)
            out[at] += weight * rew[row]
            weight *= discount[row]
            if last[row]:
                break
        out[at] += weight * value_next[row]
    return out


def vtrace(
    rew: npt.ArrayLike,
    discount: npt.ArrayLike, value: npt.ArrayLike, value_next: npt.ArrayLike,
    log_ratio: npt.ArrayLike, last: npt.ArrayLike, rho_bar: float = 1.0,
    c_bar: float = 1.0, lam: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and advantages of rows that another policy took (Espeholt et al. 2018, equation 1 and section 4.2).

        ρ[t] = min(ρ̄, exp log_ratio[t]),    c[t] = λ · min(c̄, exp log_ratio[t])
        δ[t] = ρ[t] · (rew[t] + discount[t] · value_next[t] − value[t])
        v[t] = value[t] + x[t],    x[t] = δ[t] + discount[t] · c[t] · x[t+1],    x[t+1] = 0 where `last[t]`
        A[t] = ρ[t] · (rew[t] + discount[t] · (value_next[t] + x[t+1]) − value[t])

    value_next[t] + x[t+1] is v[t+1] if value_next[t] is value[t+1] inside a segment. Where π = μ, v is `lambda_return`.

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        value: [T, B] float. V of the observation that row t acted on.
        value_next: [T, B] float.
        log_ratio: [T, B] float.
        last: [T, B] bool.
        rho_bar: ρ̄ ≥ c̄, may be infinite. Decides which policy's values are learned: π's own if infinite, μ's as it goes to 0.
        c_bar: c̄ ≥ 0. Bounds the variance, and with it the speed; it does not change what is learned.
        lam: λ in [0, 1].

    Returns:
        v [T, B], the targets of the value function, and A [T, B], the weights of ∇ log π; newly allocated.

    Raises:
        ValueError: shapes differ or T is 0; λ is outside [0, 1]; not 0 ≤ c̄ ≤ ρ̄.
        TypeError: `last` is not bool.
    """
    if not 0.0 <= c_bar <= rho_bar:
        raise ValueError(f"vtrace: `c_bar` is {c_bar} and `rho_bar` {rho_bar}; expected 0 ≤ c_bar ≤ rho_bar")
    floats = (rew, discount, value, value_next, log_ratio)
    numbers = (_fraction("vtrace", "lam", lam), float(rho_bar), float(c_bar))
    names = "rew discount value value_next log_ratio"
    targets, advantages = _run(_returns.vtrace, "vtrace", names, floats, last, numbers, results=2)
    return targets, advantages


def vtrace_reference(
    rew: Array,
    discount: Array, value: Array, value_next: Array, log_ratio: Array,
    last: Array, rho_bar: float = 1.0, c_bar: float = 1.0,
    lam: float = 1.0,
) -> tuple[Array, Array]:
    """`vtrace` as its formulas say."""
    ratio = _exp(log_ratio)
    rho, c = np.minimum(rho_bar, ratio), lam * np.minimum(c_bar, ratio)
    delta = rho * (rew + discount * value_next - value)
    targets, advantages = np.zeros_like(rew), np.zeros_like(rew)
    x = np.zeros_like(rew[0])
    for t in reversed(range(len(rew))):
        x = np.where(last[t], 0.0, x)
        advantages[t] = rho[t] * (rew[t] + discount[t] * (value_next[t] + x) - value[t])
        x = delta[t] + discount[t] * c[t] * x
        targets[t] = value[t] + x
    return targets, advantages


def retrace(
    rew: npt.ArrayLike,
    discount: npt.ArrayLike, q: npt.ArrayLike, value_next: npt.ArrayLike,
    log_ratio: npt.ArrayLike, last: npt.ArrayLike, lam: float = 1.0,
) -> Array:
    """Retrace(λ) targets of an action-value function (Munos et al. 2016, equations 3 and 4).

        G[t] = rew[t] + discount[t] · (value_next[t] + c[t+1] · (G[t+1] − q[t+1])),    c[t] = λ · min(1, exp log_ratio[t])

    without the term of t+1 where `last[t]`.

    Args:
        rew: [T, B] float.
        discount: [T, B] float in [0, 1].
        q: [T, B] float. Q of the observation and the action of row t.
        value_next: [T, B] float. Σ π(a|s') Q(s', a): Q of the next observation, as π expects it.
        log_ratio: [T, B] float. That of row 0, or of a row after a cut, does not count: its action is given.
        last: [T, B] bool.
        lam: λ in [0, 1]. 0: one-step targets.

    Returns:
        [T, B], newly allocated.

    Raises:
        ValueError: shapes differ or T is 0; λ is outside [0, 1].
        TypeError: `last` is not bool.
    """
    floats = (rew, discount, q, value_next, log_ratio)
    names, numbers = "rew discount q value_next log_ratio", (_fraction("retrace", "lam", lam),)
    return _run(_returns.retrace, "retrace", names, floats, last, numbers)[0]


def retrace_reference(
    rew: Array, discount: Array, q: Array, value_next: Array, log_ratio: Array, last: Array, lam: float = 1.0
) -> Array:
    """`retrace` as its formula says."""
    c = lam * np.minimum(1.0, _exp(log_ratio))
    out = np.zeros_like(rew)
    for t in reversed(range(len(rew))):
        follows = 0.0 if t == len(rew) - 1 else np.where(last[t], 0.0, c[t + 1] * (out[t + 1] - q[t + 1]))
        out[t] = rew[t] + discount[t] * (value_next[t] + follows)
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

    The n-step target is G + scale · V of the observation after the last reward counted, or G alone where that reward's row
    terminated.

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


def _run(
    kernel: Callable[..., None],
    verb: str, names: str, floats: tuple[npt.ArrayLike, ...],
    last: npt.ArrayLike, numbers: tuple[float, ...], results: int = 1,
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
    copies, lasts = _columns(verb, names, floats, last)
    out = [np.empty_like(copies[0]) for _ in range(results)]
    kernel(*copies, lasts, *numbers, *out)
    return out


def _exp(log_ratio: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):  # infinite is clipped, 0 is meant
        ratio: Array = np.exp(log_ratio)
    return ratio


def _columns(verb: str, names: str, floats: tuple[npt.ArrayLike, ...], last: npt.ArrayLike) -> tuple[tuple[Array, ...], Array]:
    """Checks equal shapes like `rew`, the first. Gives the arrays as the kernels read them."""
    shape = np.shape(floats[0])
    for name, value in zip([*names.split(), "last"], [*floats, last], strict=True):
        if np.shape(value) != shape or not shape or shape[0] < 1:
            raise ValueError(f"{verb}: `{name}` has shape {np.shape(value)}; expected [T, B] or [T] like `rew` {shape}, T ≥ 1")
    dtype = _dtype_of(np.asarray(floats[0]))
    return tuple(np.require(value, dtype, ["C", "A"]) for value in floats), np.require(_flags(verb, last), None, ["C"])


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

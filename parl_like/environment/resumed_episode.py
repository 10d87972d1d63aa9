"""Tries out what a checkpoint holds of an open episode, before an environment goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np

from parl_like.data.storage.state_check import check_count
from parl_like.environment.state import restore_state, unhold
from parl_like.values.spec import Spec, as_space, leaves, specs_of


def try_out(env: Any, carried: Any, memory: dict[str, list[Any]], counted: tuple[object, ...]) -> None:
    """Resets the environment, puts it back to where the episode was, and makes a step from there; the caller puts it back again.

    Args:
        env: The agent's, bare.
        carried: `env` and `rest`, as `EnvFace.carry` holds them.
        memory: What the agent's helpers remember now, by task. counted: what its environment's face counts.

    Raises:
        ValueError: this environment, or these helpers, have given nothing of the kind; or they cannot go on from there. What
            `restore_state` raises passes.
    """
    with _refused():
        state, (obs, info, remembered, counts) = unhold(carried["env"]), unhold(carried["rest"])
        _check_memory(remembered, memory)
        if not isinstance(info, dict) or len(counts) != len(counted):
            raise ValueError(f"expected an info and {len(counted)} counts, got {info!s:.60} and {counts!s:.60}")
        _check_counts(counts, counted)
    began = env.reset(seed=0)[0]  # some know their state only then
    restore_state(env, state)
    with _refused():
        expected = _specs(env, "observation_space", "obs")
        if not _fits(expected, began):  # an environment that does not keep to what it declares
            expected = {}
        _check(expected, obs)
        if specs := _specs(env, "action_space", "act"):
            act = as_space(env.action_space, {name: spec.legal(1)[0] for name, spec in specs.items()}, "act")
            _check(expected, env.step(act)[0])


@contextmanager
def _refused() -> Iterator[None]:
    """Turn what goes wrong in the block into a ValueError."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_memory(saved: dict[str, Any], own: dict[str, list[Any]]) -> None:
    for name in saved.keys() | own.keys():
        if len(saved[name]) != len(own[name]):
            raise ValueError(f"memory of task {name!r}: expected {len(own[name])} arrays, got {len(saved[name])}")
        for mine, theirs in zip(own[name], saved[name], strict=True):
            Spec(name, np.shape(mine), np.asarray(mine).dtype).convert(theirs)


def _check_counts(saved: tuple[object, ...], own: tuple[Any, ...]) -> None:
    """Returns, of which each may be several numbers, lengths, and of several environments which of them are done."""
    if isinstance(saved[0], bool) or not isinstance(saved[0], (Real, np.ndarray)):
        raise ValueError(f"return: expected a number or an array of them, got {saved[0]!s:.60}")
    returns = np.asarray(saved[0], np.float64)
    if returns.shape[: np.ndim(own[0])] != np.shape(own[0]):
        raise ValueError(f"return: expected {np.shape(own[0])}, got {returns.shape}")
    for mine, theirs in zip(own[1:], saved[1:], strict=True):
        if not isinstance(mine, np.ndarray):
            check_count(theirs, "length")
        elif not isinstance(theirs, np.ndarray) or (theirs.shape, theirs.dtype) != (mine.shape, mine.dtype):
            raise ValueError(f"lengths and ends: expected {mine.shape} {mine.dtype}, got {theirs!s:.60}")


def _specs(env: object, space: str, name: str) -> dict[str, Spec]:
    """Return the specs of what the environment declares; {} where it declares nothing, or something of no fixed shape."""
    try:
        return specs_of(getattr(env, space), name)
    except (AttributeError, TypeError):
        return {}


def _check(specs: dict[str, Spec], obs: object) -> None:
    found = dict(leaves(obs, "obs")) if specs else {}
    if found.keys() != specs.keys():
        raise ValueError(f"observation: expected {', '.join(specs)}, got {', '.join(found)}")
    for name, spec in specs.items():
        spec.check_bounds(spec.convert(found[name]))


def _fits(specs: dict[str, Spec], obs: object) -> bool:
    """Return whether the environment keeps to what it declares."""
    try:
        _check(specs, obs)
    except ValueError:
        return False
    return True

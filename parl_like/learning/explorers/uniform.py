"""Actions without a policy: drawn evenly from the action space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.fields import is_part
from parl_like.learning.explorers.base import legal, n_logits
from parl_like.learning.explorers.discrete import one_of
from parl_like.values.action_codec import ActionCodec
from parl_like.values.spec import Array, leaf_spaces, leaves


def masks_in(obs: object) -> dict[str, Array]:
    """Return what an observation, or N stacked ones, says of legal actions: `mask`, or `mask.arm.grip`, → [A], or [N, A]."""
    return {name.removeprefix("obs."): np.asarray(value) for name, value in leaves(obs, "obs") if is_part(name, "obs.mask")}


def random_legal(space: gym.Space[object], rng: np.random.Generator, obs: object) -> Any:
    """Return an action as the environment takes it, drawn evenly from those that the `mask` of its observation allows."""
    actions = ActionCodec(space).listed(random_actions(space, rng, 1, masks_in(obs)))
    assert actions is not None
    return actions[0]


def random_actions(space: gym.Space[object], rng: np.random.Generator, n: int, masks: Mapping[str, Array]) -> dict[str, Array]:
    """Actions [n, …] in the policy's units by flat name (`act`, or `act.arm.grip`), and their `log_prob` [n] float32.

    Choices are even over the legal ones, real numbers between finite bounds even, whole ones over all of them. Where a bound is
    missing they are those of gymnasium: beyond one bound an exponential distribution, without any a normal one.

    Args:
        masks: Legal actions of the choices, `mask` or `mask.arm.grip` → [n, …], 0 for illegal; what has another size is no mask.
    """
    out, log_prob = {}, np.zeros(n)
    for name, part in leaf_spaces(space, "act"):
        is_box = isinstance(part, gym.spaces.Box)
        out[name], log_p = _numbers(part, rng, n) if is_box else _choices(part, rng, n, masks.get(f"mask{name[3:]}"))
        log_prob += log_p
    return {**out, "log_prob": log_prob.astype(np.float32)}


def _choices(space: Any, rng: np.random.Generator, n: int, mask: Array | None) -> tuple[Array, Array]:
    one, size = isinstance(space, gym.spaces.Discrete), n_logits(space)
    nvec = [size] if one else np.broadcast_to(getattr(space, "nvec", 2), space.shape).ravel().tolist()
    allowed = np.ones((n, size), bool) if mask is None or mask.size != n * size else legal(mask.reshape(n, size), nvec)
    blocks = np.split(allowed, np.cumsum(nvec)[:-1], axis=1)
    act = np.stack([one_of(block, rng.random(n)) for block in blocks], axis=1)
    log_p = -np.sum([np.log(block.sum(axis=1)) for block in blocks], axis=0)
    return act[:, 0] if one else act, log_p


def _numbers(space: Any, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    shape = (n, *space.shape)
    dtype = space.dtype if space.dtype.kind == "f" else np.dtype(np.float32)
    low, high = np.isfinite(space.low), np.isfinite(space.high)
    if low.all() and high.all():
        if space.dtype.kind == "f":
            act, log_p = rng.uniform(-1.0, 1.0, shape), np.full(shape, -math.log(2.0))
        else:
            whole = rng.integers(space.low.astype(np.int64), space.high.astype(np.int64), shape, endpoint=True)
            act = ActionCodec(space).to_policy(whole)[0]
            width = space.high.astype(np.float64) - space.low
            # A density like that of a policy, whose numbers are 2 / width apart.
            log_p = np.broadcast_to(np.log(np.where(width > 0.0, width / 2.0, 1.0) / (width + 1.0)), shape)
    else:
        beyond, normal, even = rng.exponential(size=shape), rng.standard_normal(shape), rng.random(shape)
        with np.errstate(invalid="ignore"):
            width = np.where(low & high, space.high.astype(np.float64) - space.low, 1.0)
            act = np.select([low & high, low, high], [space.low + width * even, space.low + beyond, space.high - beyond], normal)
        log_p = np.select([low & high, low | high], [-np.log(width), -beyond], -0.5 * normal**2 - 0.5 * math.log(2.0 * math.pi))
    return act.astype(dtype), log_p.reshape(n, -1).sum(axis=1)

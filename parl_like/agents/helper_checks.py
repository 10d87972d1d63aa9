"""Checks of rows when they are stored, and of the buffers that helpers share."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from parl_like.agents.helper_context import HelperContext
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.values.spec import SpecError

ORDER = "; store takes obs, act, rew, obs_next, terminated, truncated in this order"


def check_places(context: HelperContext, obs: object, rew: object, obs_next: object, terminated: object, truncated: object
                 ) -> None:
    """Raise SpecError where the observations of a row, or its flags, have changed places, which fit either field.

    The row is the environment's last step, each where the other belongs. A row of several steps (the one of a goal, say) may end
    otherwise than the last of them.
    """
    env = context.agent.env
    last = () if env is None else env.last_step
    if not last or last[1] is None:
        return
    if obs is last[0] and obs_next is not obs:
        raise SpecError(f"task {context.name!r}, field 'obs': expected the observation that was acted on, got the one that the "
                        "environment gave last, which is obs_next")
    step = rew is last[2] and obs_next is last[0]
    if step and terminated is last[4] and truncated is last[3] and bool(terminated) != bool(truncated):
        raise SpecError(f"task {context.name!r}, field 'terminated': expected what the environment said, {last[3]}, got what it "
                        f"said of truncated, {last[4]}")


def check_reward(context: HelperContext, rew: Any) -> None:
    """Raise SpecError for an infinite reward, or several of which one is; what is no number the buffer refuses by itself."""
    try:
        if math.isfinite(rew):
            return
    except TypeError:
        pass  # several rewards, or none
    with suppress(TypeError):
        if np.isinf(rew).any():
            raise bad_reward(f"{context.agent}: task {context.name!r}", rew)


def bad_reward(where: str, rew: object) -> SpecError:
    """Return the refusal of a reward that is not finite, given to the helper of an agent and task (`where`)."""
    return SpecError(f"{where}, field 'rew': expected a finite number, got {rew!r:.200}; mend the environment, or let its agent "
                     "drop or replace what is not finite (on_bad_value)")


def made_buffer(kind: type, size: int, make: Callable[..., Any], n_lanes: int, rng: np.random.Generator) -> ReplayBuffer:
    """Return the buffer of an off-policy helper.

    Args:
        kind: The helper's class, for messages.
        size: Rows that it holds, all lanes together.
        make: Called with size, lanes and generator.
        n_lanes: Lanes in it, one for each environment of each agent.

    Raises:
        TypeError: `make` makes none, or none whose rows can be drawn.
    """
    owner = f"{kind.__name__}: buffer"
    try:
        buffer = make(size, n_lanes, rng)
    except TypeError as error:
        raise TypeError(f"{owner} could not be made: {error}; expected what takes size, lanes and a generator, such as "
                        "ReplayBuffer or partial(PrioritizedReplayBuffer, alpha=0.6)") from error
    check_kind(owner, buffer)
    return buffer  # type: ignore[no-any-return]


def check_kind(owner: str, buffer: object) -> None:
    """Raise TypeError for what is no buffer that helpers share; `owner` names it."""
    if not isinstance(buffer, (ReplayBuffer, CachedReplayBuffer)):
        raise TypeError(f"{owner} gives {type(buffer).__name__}; expected a ReplayBuffer or PrioritizedReplayBuffer, of which "
                        "rows can be drawn while their episodes go on; fill others by hand, from an agent of your own")

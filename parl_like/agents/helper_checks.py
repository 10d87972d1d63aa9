"""Checks of a helper: when it is made, it refuses options that it does not have; when it joins its task, rows that nobody can
learn from."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from parl_like.agents.helper_context import HelperContext
from parl_like.agents.row_format import DURATION, RowFormat
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Transforms
from parl_like.environment.factory import REWARD_WEIGHTS, reward_shape
from parl_like.interfaces import HelperPort
from parl_like.learning.algorithm import Window
from parl_like.learning.explorers import Beta, Candidates, Explorer, Gaussian, Noisy
from parl_like.learning.explorers.base import lacks
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import unknown
from parl_like.values.spec import Spec, SpecError


class CheckedHelper(HelperPort, Protocol):
    """A helper that has joined its task, as these checks know it; the attributes are those of `AgentHelper`."""

    context: HelperContext
    task: ComputationTask
    model: Any
    window: Window
    explorer: Explorer | None
    extras: tuple[Spec, ...]
    transforms: Transforms
    format: RowFormat
    sends_returns: bool


ORDER = "; store takes obs, act, rew, obs_next, terminated, truncated in this order"


def check_places(context: HelperContext, obs: object, rew: object, obs_next: object, terminated: object, truncated: object
                 ) -> None:
    """Raise SpecError where the observations of a row, or its flags, have changed places, which fit either field.

    The row is the environment's last step, each where the other belongs. A row of several steps (the one of a goal, say) may end
    otherwise than the last of them.
    """
    env = context.agent.env
    last = () if env is None else env.last
    if not last or last[1] is None:
        return
    if obs is last[0] and obs_next is not obs:
        raise SpecError(f"task {context.name!r}, field 'obs': expected the observation that was acted on, got the one that the "
                        "environment gave last, which is obs_next")
    step = rew is last[2] and obs_next is last[0]
    if step and terminated is last[4] and truncated is last[3] and bool(terminated) != bool(truncated):
        raise SpecError(f"task {context.name!r}, field 'terminated': expected what the environment said, {last[3]}, got what it "
                        f"said of truncated, {last[4]}")


def check_options(helper: object, explorer: object, more: Mapping[str, object]) -> None:
    """Raises TypeError for an explorer that is none, and for options `more` that no constructor of the helper's class has."""
    kind = type(helper)
    check_explorer(f"{kind.__name__}: explorer", explorer)
    for name in more:
        makers = [inspect.signature(vars(one)["__init__"]).parameters.values() for one in kind.__mro__ if "__init__" in vars(one)]
        known = {one.name for maker in makers for one in maker if one.kind is one.KEYWORD_ONLY}
        raise TypeError(f"{kind.__name__}: {unknown('option', name, known)}")


def check_explorer(what: str, explorer: object) -> None:
    """Raises TypeError for one that is none."""
    if explorer is not None and not isinstance(explorer, Explorer):
        raise TypeError(f"{what} is {explorer!r}; expected an Explorer, such as EpsilonGreedy(0.1)")


def check_outputs(helper: CheckedHelper) -> None:
    """Raises where the prediction, as it was tried out, lacks what the helper's explorer reads (ValueError), or has not one
    number per action (SpecError)."""
    explorer, shapes, space = helper.explorer, helper.task.output_shapes, helper.model.act_space
    if explorer is None or not shapes:
        return
    for name in ([] if explorer.reads is None else [explorer.reads]) + [*explorer.needs]:
        if name not in shapes:
            raise ValueError(f"{helper.where}: {lacks(explorer, name, shapes)}")
    shape = shapes.get(explorer.reads or "")
    if shape is not None and isinstance(space, gym.spaces.Discrete) and shape != (int(space.n),):
        raise SpecError(f"task {helper.name!r}, output of predict, field {explorer.reads!r}: expected ('N', {space.n}), one "
                        f"number per action, got ('N', {', '.join(map(str, shape))}); look at the last layer of "
                        f"{type(helper.model).__name__}")
    if isinstance(explorer, (Gaussian, Noisy, Beta)) and isinstance(space, gym.spaces.Box):
        of_model = {name: shapes[name] for name in explorer.needs if name in ("mean", "alpha", "beta")}
        for name, got in {**of_model, "act": explorer.shape}.items():
            if math.prod(got) != math.prod(space.shape):
                where = f"the last layer of {type(helper.model).__name__}" if name in of_model else type(explorer).__name__
                raise SpecError(f"task {helper.name!r}, output of predict, field {name!r}: expected {('N', *space.shape)}, as of "
                                f"the action space, got {('N', *got)}; look at {where}")


def check_rows(helper: CheckedHelper, keeps: bool) -> None:
    """Raises ValueError where the task's algorithm, or a transform, needs others than the rows that this helper sends; `keeps`:
    whether it has a buffer."""
    context = helper.context
    window, algorithm, kind = context.window, context.task.algorithm, type(helper).__name__
    if window.n_step > 1 and DURATION in helper.extras:
        raise ValueError(f"{context.where}: rows with durations look n steps ahead already; set n_step=1, got {window.n_step}")
    if context.mode == "test":
        return
    if helper.store_info and context.task.train and not keeps:
        raise ValueError(f"{context.where}: {kind} keeps no rows, so it cannot store_info; use a helper with a buffer, such as "
                         "OffPolicyHelper")
    if not helper.learns:
        return
    if isinstance(helper.explorer, Candidates) and not helper.sends_returns:
        raise ValueError(f"{context.where}: {type(algorithm).__name__} learns from the returns of candidates, {kind} sends rows; "
                         "use PopulationHelper")
    for transform in context.chain:
        transform.check_window(window)
    if getattr(algorithm, "one_reward", False) and (shape := reward_shape(context.agent.env)):
        raise ValueError(f"{context.where}: the environment gives rewards of shape {shape}, and {type(algorithm).__name__} "
                         f"learns from one number a step; {REWARD_WEIGHTS}")


def check_buffer(helper: CheckedHelper, buffer: Any) -> None:
    """Raises ValueError for lanes that are too short for what is looked at together, and SpecError for frames other than the
    model's."""
    rows = helper.window.rows + max(helper.transforms.behind, buffer.stack_num - 1)
    if rows > buffer.lane_size and not helper.window.in_order:
        raise ValueError(f"{helper.where}: the algorithm looks at {rows} rows in a row, a lane of the buffer holds "
                         f"{buffer.lane_size}; give the helper size ≥ {rows * buffer.n_lanes}")
    for name, spec in helper.format.raw.items():
        if buffer.read_shape(name) != spec.shape:
            raise spec.owned_by(helper.where).error(
                f"{buffer.read_shape(name)} from {buffer!r}", "stack_num goes with observations that come stacked "
                "(save_only_last_obs); for single frames use the transform FrameStacker")


def check_reward(context: HelperContext, rew: Any) -> None:
    """Raises SpecError for an infinite reward, or several of which one is; what is no number the buffer refuses by itself."""
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
    """The buffer of an off-policy helper. Raises TypeError where `make` makes none, or none whose rows can be drawn."""
    owner = f"{kind.__name__}: buffer"
    try:
        buffer = make(size, n_lanes, rng)
    except TypeError as error:
        raise TypeError(f"{owner} could not be made: {error}; expected what takes size, lanes and a generator, such as "
                        "ReplayBuffer or partial(PrioritizedReplayBuffer, alpha=0.6)") from error
    check_kind(owner, buffer)
    return buffer  # type: ignore[no-any-return]


def check_kind(owner: str, buffer: object) -> None:
    """Raises TypeError for what is no buffer that helpers share."""
    if not isinstance(buffer, (ReplayBuffer, CachedReplayBuffer)):
        raise TypeError(f"{owner} gives {type(buffer).__name__}; expected a ReplayBuffer or PrioritizedReplayBuffer, of which "
                        "rows can be drawn while their episodes go on; fill others by hand, from an agent of your own")

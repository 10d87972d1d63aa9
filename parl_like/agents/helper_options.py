"""HelperOptions: what a helper was told when it was made, and what becomes of it when the helper joins its task."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import gymnasium as gym

from parl_like.agents.helper_context import HelperContext
from parl_like.agents.row_format import DURATION
from parl_like.agents.update_schedule import UpdateSchedule
from parl_like.data.extra_fields import Wanted, info_specs
from parl_like.data.transforms import Transform, Transforms
from parl_like.environment.factory import REWARD_WEIGHTS, reward_shape
from parl_like.learning.explorers import Beta, Candidates, Explorer, Gaussian, Noisy
from parl_like.learning.explorers.base import lacks
from parl_like.values.errors import unknown
from parl_like.values.spec import Spec, SpecError

LAID_OUT = "the buffer's columns were laid out for it; build the helper with another"
"""Why most of these options cannot be assigned once the helper has joined its task."""


class HelperOptions:
    """The options of an `AgentHelper`.

    Args:
        kind: The helper's class, for messages.
        more: Options that no constructor of that class has.
        explorer: How predictions become actions; None: the algorithm's default.
        store_policy: Whether the explorer's `log_prob` is stored with each row; needed when rows are learned from after the
            parameters have changed. None: where that may happen (`OnPolicyHelper`) and the explorer has log-probabilities. What
            `predict` itself gives as `policy` is stored, too, unless this is False.
        extras: Further columns of the buffer, for values that the agent gives to `store` by name. One of them the algorithms
            know: `DURATION`, the steps that a row's action took; its next state is discounted by γ to that power.
        transforms: What is done to raw observations and rewards on their way to the model (`parl_like.data.transforms`), on
            rollout and again on replay. The buffer keeps raw rows; statistics are shared by all helpers of the task. Build the
            model for `Transforms(transforms).space(space)`. With a `FrameStacker`, predict once per step.
        obs_space: The space of the raw observations, where transforms get others than the environment's.
        store_info: Keys of the environment's `info` that are stored with each row, and which algorithms read as `batch.info.x`:
            `("x",)`, one number in every step, as float64; or with what stands for it in steps that lack it, which says its
            shape and dtype, too: `{"x": 0.0, "position": np.zeros(3, np.float32)}`.

    Attributes:
        explorer: Once the helper has joined its task its own copy; None: predictions are actions.
        store_policy: Then True or False.
        policy_required: Then whether the user asked for it, so that an action without a log-probability is refused.
        transforms: Then the helper's own chain.
        store_info: Key → its column, and what stands for it.

    Raises:
        TypeError: an unknown option; an explorer that is none.
    """

    def __init__(self, kind: type, more: Mapping[str, object], *, explorer: Explorer | None, store_policy: bool | None,
                 extras: Sequence[Spec], transforms: Iterable[Transform], obs_space: gym.Space[object] | None,
                 store_info: Wanted) -> None:
        _check_explorer(f"{kind.__name__}: explorer", explorer)
        _refuse_unknown(kind, more)
        self.kind, self.explorer, self.store_policy = kind, explorer, store_policy
        self.policy_required = False
        self.extras = tuple(extras)
        self.transforms = Transforms(transforms)
        self.obs_space = obs_space
        self.store_info = info_specs(kind.__name__, store_info)

    def join(self, context: HelperContext, schedule: UpdateSchedule) -> None:
        """Take what the algorithm says, and the helper's `schedule`, where the user said nothing.

        Raises:
            TypeError, ValueError, SpecError: the explorer is none, or reads what the algorithm does not predict.
        """
        algorithm = context.task.algorithm
        # A copy: what it remembers of episodes is this helper's.
        explorer: Any = copy(algorithm.explorer() if self.explorer is None else self.explorer)
        _check_explorer(f"{context.where}: explorer of {type(algorithm).__name__}", explorer)
        self.policy_required = self.store_policy is not None
        if self.store_policy is None:
            self.store_policy = context.mode != "test" and hasattr(explorer, "log_prob") and schedule.learns_late()
        if self.store_policy:
            if not hasattr(explorer, "log_prob"):
                raise ValueError(f"{context.where}: store_policy needs an explorer with log-probabilities; {explorer!r} has none")
            explorer.log_prob = True
        self.explorer = explorer
        _check_outputs(context, explorer)
        self.transforms = context.chain.for_helper(len(context.lanes), context.mode)
        if schedule.learns and context.mode != "test":
            self.transforms.prepare(-1)  # until its first update

    def check_rows(self, context: HelperContext, schedule: UpdateSchedule) -> None:
        """Raise ValueError where the task's algorithm, or a transform, needs others than the rows that the helper sends, by its
        `schedule`."""
        keeps_rows = type(schedule).make_buffer is not UpdateSchedule.make_buffer
        window, algorithm, kind = context.window, context.task.algorithm, self.kind.__name__
        if window.n_step > 1 and DURATION in self.extras:
            raise ValueError(f"{context.where}: rows with durations look n steps ahead already; set n_step=1, got "
                             f"{window.n_step}")
        if context.mode == "test":
            return
        if self.store_info and context.task.train and not keeps_rows:
            raise ValueError(f"{context.where}: {kind} keeps no rows, so it cannot store_info; use a helper with a buffer, such "
                             "as OffPolicyHelper")
        if not schedule.learns:
            return
        if isinstance(self.explorer, Candidates) and not schedule.sends_returns:
            raise ValueError(f"{context.where}: {type(algorithm).__name__} learns from the returns of candidates, {kind} sends "
                             "rows; use PopulationHelper")
        for transform in context.chain:
            transform.check_window(window)
            if not keeps_rows and transform.only_replays:
                raise ValueError(f"{context.where}: {transform!r} changes rows of a buffer, and {kind} keeps none; leave it "
                                 "out, or use a helper with a buffer, such as OffPolicyHelper")
        if window.whole and not schedule.sends_episodes:
            raise ValueError(f"{context.where}: {type(algorithm).__name__} learns from whole episodes, and {kind} sends rows as "
                             "they come; use EpisodicHelper")
        if window.one_lane and context.first_lane + len(context.lanes) > 1:
            raise ValueError(f"{context.where}: its algorithm learns from one environment alone, and there are more; "
                             "set n_agents=1, with one environment and one player, or use another algorithm")
        if getattr(algorithm, "one_reward", False) and (shape := reward_shape(context.agent.env)):
            raise ValueError(f"{context.where}: the environment gives rewards of shape {shape}, and {type(algorithm).__name__} "
                             f"learns from one number a step; {REWARD_WEIGHTS}")

def _refuse_unknown(kind: type, more: Mapping[str, object]) -> None:
    """Raise TypeError for options `more` that no constructor of the helper's class has."""
    for name in more:
        makers = [inspect.signature(vars(one)["__init__"]).parameters.values() for one in kind.__mro__ if "__init__" in vars(one)]
        known = {one.name for maker in makers for one in maker if one.kind is one.KEYWORD_ONLY}
        raise TypeError(f"{kind.__name__}: {unknown('option', name, known)}")


def _check_explorer(what: str, explorer: object) -> None:
    """Raise TypeError for one that is none."""
    if explorer is not None and not isinstance(explorer, Explorer):
        raise TypeError(f"{what} is {explorer!r}; expected an Explorer, such as EpsilonGreedy(0.1)")


def _check_outputs(context: HelperContext, explorer: Explorer | None) -> None:
    """Raise where the prediction, as it was tried out, lacks what the explorer reads (ValueError), or has not one number per
    action (SpecError)."""
    shapes, model = context.task.output_shapes, context.model
    if explorer is None or not shapes:
        return
    for name in ([] if explorer.reads is None else [explorer.reads]) + [*explorer.needs]:
        if name not in shapes:
            raise ValueError(f"{context.where}: {lacks(explorer, name, shapes)}")
    shape, space = shapes.get(explorer.reads or ""), model.act_space
    if shape is not None and isinstance(space, gym.spaces.Discrete) and shape != (int(space.n),):
        raise SpecError(f"task {context.name!r}, output of predict, field {explorer.reads!r}: expected ('N', {space.n}), one "
                        f"number per action, got ('N', {', '.join(map(str, shape))}); look at the last layer of "
                        f"{type(model).__name__}")
    if isinstance(explorer, (Gaussian, Noisy, Beta)) and isinstance(space, gym.spaces.Box):
        of_model = {name: shapes[name] for name in explorer.needs if name in ("mean", "alpha", "beta")}
        for name, got in {**of_model, "act": explorer.shape}.items():
            if math.prod(got) != math.prod(space.shape):
                where = f"the last layer of {type(model).__name__}" if name in of_model else type(explorer).__name__
                raise SpecError(f"task {context.name!r}, output of predict, field {name!r}: expected {('N', *space.shape)}, as "
                                f"of the action space, got {('N', *got)}; look at {where}")

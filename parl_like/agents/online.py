"""OnlineHelper: acts and learns step by step in the agent itself, for tables and whatever else is faster than a queue."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_checks import bad_reward
from parl_like.agents.helper_context import HelperContext
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import EpsilonGreedy, Explorer, random_actions
from parl_like.learning.model import ArrayModel
from parl_like.tasks.row_updates import RowUpdates
from parl_like.values.batch import Batch
from parl_like.values.batch_leaf import same
from parl_like.values.spec import Array, SpecError, nest

TURN = 256
"""Rows that an agent stores before the others, and the run loop, have their turn."""


class OnlineHelper(AgentHelper):
    """Learns from each row when it is stored, in the agent itself: no buffer, no queue, no batch.

    The algorithm gets the row without the axis of rows: `obs`, `act`, `rew`, `terminated`, `truncated`, `obs_next`, the numbers
    themselves where they are single ones. A formula that reads last axes (`q.max(-1)`) serves rows and batches alike. For models
    of arrays (`ArrayModel`) under the cooperative driver; anything else is refused.

    Of the fields of a `Window` there are `first`, `lane`, `episode` and `step`, as a buffer has them, and `next_act`, with
    `has_next`: then a row is learned from when the action after it is stored. Where the episode is cut there (a time limit, a
    checkpoint, a row that does not follow) the action is drawn that the explorer would have taken.

    Args:
        explorer: How predictions become actions; None: the algorithm's default.
    """

    learns = True

    def __init__(self, *, explorer: Explorer | None = None) -> None:
        super().__init__(explorer=explorer)

    def bind(self, context: HelperContext) -> None:
        """Join the helper to its agent and task; called once, by the robot.

        Raises:
            ValueError: the task cannot learn from single rows in the agent; the message says why, and what to do.
        """
        super().bind(context)
        task, model, driver = self.context.task, self.model, context.agent.agent_pool.driver_name
        for wrong, there, mend in (
            (not isinstance(model, ArrayModel), type(model).__name__, "give the algorithm an ArrayModel"),
            (driver != "cooperative", f"driver {driver!r}", "use driver='cooperative'"),
            (context.agent.vector, "a vector environment", "give each agent one environment"),
            (getattr(self.explorer, "given", None), type(self.explorer).__name__, "take an explorer whose noise is not an input"),
            ("act" not in model.act_specs, f"an action of {model.act_space}", "take one array as the action"),
            (self.window.rows > 1, repr(self.window), "let the algorithm ask for single rows"),
            ("number" in self.window.fields, "the field 'number' of a Window", "write the algorithm without it"),
            (type(task.algorithm).minibatches is not Algorithm.minibatches, "minibatches()", "do without"),
        ):
            if wrong:
                raise ValueError(f"{self.where}: OnlineHelper learns from single rows in the agent itself, and there is {there}; "
                                 f"{mend}, or learn with OffPolicyHelper")
        self._trains = self.context.mode != "test" and task.train
        self._algorithm, self._row, self._asked = task.algorithm, Batch(), Batch()
        self._fields, self._inputs = self._row.__dict__, self._asked.__dict__  # `batch.obs = obs` would cost 10 % of a step
        space = model.obs_space if self.format.plain else None
        self._explorer = self.explorer
        self._n = int(space.n) if isinstance(space, gym.spaces.Discrete) and not space.start else 0
        self._plain, self._unmapped, self._noise = self.format.plain, self.writer.unmapped, self.acting.noise
        self._follows = type(task.algorithm).follow is not Algorithm.follow
        self._dtype = model.act_space.dtype if isinstance(model.act_space, gym.spaces.Box) else None
        self._with_origins = bool(self.writer.origins.names)  # which a learner of numbers is not told
        self._updates = RowUpdates(task)
        self._learner = task.algorithm.row_learner() if self._n and self._unmapped and not self._with_origins else None
        self._actor = self._learner if type(self.explorer) is EpsilonGreedy else None  # which acts as this explorer does
        self._result: Any = {}  # of the newest update
        self._looks_ahead = "next_act" in self.window.fields
        self._open: Any = None  # the row whose next action is not known yet, and its obs_next

    def due(self) -> bool:
        """Nobody waits for its updates."""
        return False

    def interrupt(self, rows: Array | None = None) -> None:
        """Learn from the row that waits for its next action, then cut as `AgentHelper.interrupt`."""
        self._settle()
        super().interrupt(rows)

    def predict(self, obs: Any) -> Any:
        """Return the action for one observation, which the task's algorithm gives at once: no queue, no batch.

        Raises:
            SpecError: `obs` does not fit.
        """
        if self.context.agent.signal is not None:
            self.context.agent.obey()
        return self._chosen(obs)

    def _chosen(self, obs: Any) -> Any:
        algorithm = self._algorithm
        if not (obs.__class__ is int and 0 <= obs < self._n):
            obs = self._converted(obs)
        self._inputs["obs"] = obs
        if self.acting.collecting == "random":
            masks = {"mask": np.asarray(obs["mask"])} if not self._plain and "mask" in obs else {}
            return self.context.codec.listed(random_actions(self.model.act_space, self.rng, 1, masks))[0]  # type: ignore[index]
        noise = None
        if (drawn := self._noise) is not None:
            noise = drawn.left.pop() if drawn.left else drawn.draw()
            if self._actor is not None:
                return self._actor.act(obs, noise)
        attributes = algorithm.__dict__  # past `__setattr__`
        before, attributes["mode"] = algorithm.mode, self.context.mode
        try:
            out = algorithm.predict(self._asked)
        finally:
            attributes["mode"] = before
        if self._explorer is None and "act" not in out:
            return Batch.nest({key: np.array(value) for key, value in out.items()})
        act = out["act"] if self._explorer is None else self._explorer.act_one(out, noise)
        if self._unmapped:
            return act if self._dtype is None else np.asarray(act, self._dtype)
        return self.context.codec.listed({"act": np.asarray(act)[None]})[0]  # type: ignore[index]

    def store(
        self, obs: Any, act: object, rew: Any, obs_next: object, terminated: object, truncated: object,
        info: Mapping[str, object] | None = None, mask: Array | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:
        """Learn from one transition. `mask` and `extra` are for helpers with a buffer.

        Raises:
            SpecError: a value does not fit its field, or the reward is not finite; nothing was learned.
            Diverged: see `RowUpdates.learn`.
        """
        if self.context.mode == "test":
            return
        n = self._n
        if not (obs.__class__ is int and 0 <= obs < n):
            obs = self._converted(obs)
        if not (obs_next.__class__ is int and 0 <= obs_next < n):
            obs_next = self._converted(obs_next)
        if not isfinite(rew):
            raise bad_reward(self.where, rew)
        origins = self._next_origins(terminated or truncated) if self._with_origins else ()
        self.acting.steps += 1
        if self._trains and not self.acting.collecting:
            if not self._unmapped:
                act = self.writer.policy_units(act)[0]
            if self._looks_ahead:
                self._look_ahead(obs, act, rew, obs_next, terminated, truncated, *origins)
            else:
                self._learn_row(None, obs, act, rew, obs_next, terminated, truncated, *origins)
        if not self.acting.steps % TURN:
            self.context.comm.wrapper.trainings.last_result = self._results()
            self.context.agent.agent_pool.driver.rest(self.context.agent)

    def _next_origins(self, ends: object) -> tuple[object, ...]:
        """Return where the row that is stored now stands in its lane."""
        origins = self.writer.origins.values(0)
        self.writer.origins.stored(0, np.bool_(ends))
        return origins

    def _look_ahead(self, obs: object, act: object, rew: object, obs_next: object, terminated: object, truncated: object,
                    *origins: object) -> None:
        """Learns from the row before this one, whose next action is this one's; and from this one if nothing follows."""
        if self._open is not None:
            row, expected = self._open
            if expected == obs if self._n else same(expected, obs):
                self._open = None
                self._learn_row(act, *row)
            else:
                self._settle()
        row = obs, act, rew, obs_next, terminated, truncated, *origins
        if terminated:
            self._learn_row(None, *row)
        else:
            self._open = row, obs_next
            if truncated:
                self._settle()

    def _settle(self) -> None:
        """Learns from the row that waits for its next action, which nobody takes now."""
        if self._open is not None:
            (row, obs_next), self._open = self._open, None
            act = self._chosen(obs_next)
            self._learn_row(act if self._unmapped else self.writer.policy_units(act)[0], *row)

    def _learn_row(self, next_act: object, obs: object, act: object, rew: object, obs_next: object, terminated: object,
                   truncated: object, *origins: object) -> None:
        if self._follows:
            self.context.task.follow(self.context.agent.agent_pool.statistics.env_steps)
        if self._learner is not None:
            try:
                self._result = self._updates.learn_numbers(
                    self._learner, obs, act, rew, obs_next, terminated, -1 if next_act is None else next_act)
            except IndexError as error:
                raise SpecError(f"{self.where}: {error}") from None
            return
        fields = self._fields
        fields["obs"], fields["act"], fields["rew"], fields["obs_next"] = obs, act, rew, obs_next
        fields["terminated"], fields["truncated"] = terminated, truncated
        if origins:
            fields.update(zip(self.writer.origins.names, origins, strict=True))
        if self._looks_ahead:
            fields["next_act"], fields["has_next"] = act if next_act is None else next_act, next_act is not None
        self._result = self._updates.learn(self._row)

    def _results(self) -> Mapping[str, object]:
        result = self._result
        return result if self._learner is None or isinstance(result, Mapping) else {self._learner.reports: result}

    def _converted(self, obs: object) -> object:
        """An observation, checked, as its spec says."""
        values = zip(self.format.inputs, self.format.flat(obs, self.format.inputs), strict=True)
        made = {}
        for name, value in values:
            spec = self.format.raw[name].owned_by(self.where)
            array = spec.convert(value)
            spec.check_bounds(array)
            made[name] = array[()]
        return made["obs"] if self._plain else Batch(nest(made)["obs"])

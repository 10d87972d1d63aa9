"""AgentHelper: what an agent uses of one task, and what it remembers for it. When it learns, `parl_like.agents.off_policy`
says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.acting import Acting
from parl_like.agents.helper_checks import check_buffer, check_explorer, check_options, check_outputs, check_rows
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.row_format import RowFormat
from parl_like.agents.row_writer import RowWriter
from parl_like.agents.updates import UpdateSender
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.extra_fields import Wanted, info_specs, read
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.data.transforms import Transform, Transforms
from parl_like.interfaces import ActingAgent, UsersAgent
from parl_like.learning.algorithm import Window
from parl_like.learning.explorers import Explorer
from parl_like.learning.fixed_settings import Alias, fixed
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.tickets import joined
from parl_like.tasks.wrapper import Communicator
from parl_like.values.errors import NotEnoughRows
from parl_like.values.parts import part
from parl_like.values.spec import Array, Spec, SpecError
from parl_like.values.user_calls import Guarded

_LAID_OUT = "the buffer's columns were laid out for it; build the helper with another"


class AgentHelper(Guarded):
    """One agent's access to one task. This base class predicts and never learns; `parl_like.agents.off_policy` has those that do.

    Args:
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
        name: The task's name.
        buffer: Raw rows, one lane per environment, shared by all helpers of the task in this process; None if nothing is kept.
        steps: Rows stored by this helper.
        random_until: Rows of this helper before which it acts at random (`OffPolicyHelper.random_steps`).
        mode: 'collect' or 'test'. In test mode actions are greedy, nothing is stored and nothing is learned.
        wait: Whether learning blocks the agent (sync) or not (async).
        where: Agent and task, for messages.
    """

    explorer: Explorer | None = fixed("noise is drawn by this one; assign a setting of it, such as helper.explorer.epsilon")
    store_policy: bool | None = fixed(_LAID_OUT)
    extras: tuple[Spec, ...] = fixed(_LAID_OUT)
    transforms: Transforms = fixed(_LAID_OUT)
    obs_space: gym.Space[object] | None = fixed(_LAID_OUT)
    store_info: dict[str, tuple[Spec, object]] = fixed(_LAID_OUT)
    context: HelperContext
    acting: Acting
    writer: RowWriter
    sender: UpdateSender
    name: str = part("context.name")
    agent: ActingAgent = part("context.agent")
    comm: Communicator = part("context.comm")
    task: ComputationTask = part("context.task")
    model: Any = part("context.model")
    window: Window = part("context.window")
    lanes: range = part("context.lanes")
    buffer: ReplayBuffer | None = part("context.buffer")
    rng: np.random.Generator = part("context.rng")
    mode: Mode = part("context.mode")
    wait: bool = part("context.wait")
    where: str = part("context.where")
    format: RowFormat = part("acting.format")
    steps: int = part("acting.steps")
    random_until: float = part("acting.random_until")
    memory: tuple[Array, ...] = part("acting.memory")
    outputs: Mapping[str, Array] = part("acting.outputs")
    exp_q, store_data = Alias("buffer"), Alias("store")
    learns = False
    sends_returns = False  # of candidates, in place of rows
    acts_in_step = False  # whether acting and learning must see the same statistics, where learning waits

    def __init__(
        self, *, explorer: Explorer | None = None, store_policy: bool | None = None, extras: Sequence[Spec] = (),
        transforms: Iterable[Transform] = (), obs_space: gym.Space[object] | None = None, store_info: Wanted = (),
        **more: object,
    ) -> None:
        check_options(self, explorer, more)
        self.explorer = explorer
        self.store_policy = store_policy
        self.extras = tuple(extras)
        self.transforms = Transforms(transforms)
        self.obs_space = obs_space
        self.store_info = info_specs(type(self).__name__, store_info)

    # ------------------------------------------------------------------------------------------------------- construction

    def training_rule(self) -> BatchRule:
        """When this schedule's training batches close, unless the task says otherwise."""
        return BatchRule()

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """The buffer that all helpers of the task share; asked of the first helper only."""
        return None

    def bind(self, context: HelperContext) -> None:
        """Join the helper to its agent and task; called once, by the robot.

        Raises:
            ValueError: the helper's options do not fit the algorithm.
        """
        self.context, acts = context, context.mode != "test"
        given = self.store_policy
        self._bind_explorer()
        self._check_window()
        check_rows(self, type(self).make_buffer is not AgentHelper.make_buffer)
        if self.explorer is not None:
            context.comm.wrapper.predictions.add_explorer(self.explorer, context.agent)
        self.transforms = context.chain.for_helper(len(context.lanes), context.mode)
        if self.learns and acts:
            self.transforms.prepare(-1)  # until its first update
        row_format = RowFormat(context, self.transforms, self.obs_space)
        self.acting = Acting(context, self.explorer, row_format, self.transforms, self.acts_in_step and context.wait and acts)
        self.writer = RowWriter(context, self.acting, bool(self.store_policy), given is not None, self.extras, self.store_info)
        self.sender = UpdateSender(context)
        if context.buffer is not None:
            self.allocate(context.buffer, self.writer.columns())
            self._check_buffer(context.buffer)
        if type(self).predict is AgentHelper.predict:
            self.predict = self.acting.predict  # type: ignore[method-assign]  # hot: a call less, 3 % of a request
        self.bound = True

    def _bind_explorer(self) -> None:
        algorithm = self.task.algorithm
        # A copy: what it remembers of episodes is this helper's.
        explorer: Any = copy(algorithm.explorer() if self.explorer is None else self.explorer)
        check_explorer(f"{self.where}: explorer of {type(algorithm).__name__}", explorer)
        self.explorer = explorer
        if self.store_policy is None:
            self.store_policy = self.mode != "test" and hasattr(explorer, "log_prob") and self._learns_late()
        if self.store_policy:
            if not hasattr(explorer, "log_prob"):
                raise ValueError(f"{self.where}: store_policy needs an explorer with log-probabilities; {explorer!r} has none")
            explorer.log_prob = True
        check_outputs(self)

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Declares the columns of a row, in the order in which `store` writes them."""
        buffer.allocate(specs)

    def _check_buffer(self, buffer: ReplayBuffer) -> None:
        """Refuses a buffer whose rows are not those that are looked at."""
        check_buffer(self, buffer)

    def _check_window(self) -> None:
        """Refuses an algorithm that asks for rows which this schedule does not send."""

    def _learns_late(self) -> bool:
        """Return whether parameters may change between an action and its update, and this schedule cares."""
        return False

    def pre_episode(self, agent: UsersAgent) -> None:
        """Stage PRE_EPISODE: memory from zero, the explorer's anew; of a vector environment those of its `env_index`."""
        lane = agent.env.env_index if agent.vector else 0
        self.writer.begin(lane)
        self.acting.begin(lane)

    def episode_seed(self) -> int | None:
        """The seed with which the agent's next episode begins; None: this helper does not say."""

    def explore(self) -> None:
        """Draws actions also in test mode."""
        if self.acting.noise is not None:
            self.acting.noise.drawn = True

    def interrupt(self, rows: Array | None = None) -> None:
        """The open episodes end here without an end of their own: nothing may look across the cut.

        Args:
            rows: Numbers of the environments of a vector environment that this is about; None: all.
        """
        self.writer.cut(rows)

    # ------------------------------------------------------------------------------------------------------------- acting

    @property
    def collecting(self) -> bool | str:
        """True while `Robot.collect` runs: rows are stored, nothing is learned; 'random' where it acts at random."""
        return self.acting.collecting

    @collecting.setter
    def collecting(self, value: bool | str) -> None:
        self.acting.collect(value)

    def predict(self, obs: Any) -> Any:
        """Asks the task, explores, and returns what the environment takes.

        Args:
            obs: One observation, an array or a nested dict, by the model's observation space; n of them, stacked, for an agent
                with a vector environment.

        Returns:
            The action: int for Discrete, array for Box (clipped to [−1, 1] and scaled to the bounds), read-only: another one
            (`act = act + x`) is stored as it is. From a task without actions: a `Batch` of its outputs for this row.

        Raises:
            SpecError: `obs` does not fit. TaskFailed: the task raised.
        """
        return self.acting.predict(obs)

    def ask(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Asks the task for any number of rows, as its model's `inputs()` name them: no exploring, no memory, no transforms.

        For tasks that are not asked once per environment and step, such as a world model that an agent plans with.

        Args:
            rows: Flat input name → [N, ...].

        Returns:
            Flat output name → [N, ...], which the task may overwrite when it is asked again.

        Raises:
            SpecError: a field is missing, unknown, or does not fit. TaskFailed: the task raised.
        """
        if self.agent.signal is not None:
            self.agent.obey()
        names = [spec.name for spec in self.comm.wrapper.predictions.specs]
        if rows.keys() != set(names):
            raise SpecError(f"{self.agent}: task {self.name!r}, ask: expected {', '.join(names)}, got {', '.join(rows)}")
        return joined(self.comm.predict_rows(tuple(rows[name] for name in names), len(rows[names[0]])))

    # ------------------------------------------------------------------------------------------------------------- storing

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any,
        info: Mapping[str, object] | None = None, mask: Array | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:
        """Stores one transition (n of them for a vector environment) and learns when the schedule says so.

        Args:
            obs, act, rew, obs_next, terminated, truncated: One step; `obs_next` is what the environment returned with `rew`,
                at an episode's end the true final observation.
            info: What `env.step` returned with them; of it `store_info` is stored.
            mask: [n] bool, rows that are real transitions; None: all.
            extra: Values of the helper's `extras`, by name.

        Raises:
            SpecError: a value does not fit its field; nothing was stored.
        """
        if self.context.buffer is not None:
            self._after_store(*self.writer.store(obs, act, rew, obs_next, terminated, truncated, info, mask, extra))

    def _after_store(self, rows: int, ended: int) -> None:
        """The schedule: called after each stored step with the number of its rows, and of those that ended an episode."""

    # ------------------------------------------------------------------------------------------------------------ learning

    def learn(self) -> dict[str, Any] | None:
        """Sends one training request now, whatever the schedule. In sync mode it waits for those learning agents that have taken
        fewer steps since their last update than this one, so for nobody who never learns.

        Returns:
            The training return (metrics, and arrays with one entry per row sent); None where there is nothing to learn from yet
            (`ready`), when learning does not wait, in test mode, and while the robot only collects.

        Raises:
            NotEnoughRows: this helper keeps no rows at all.
        """
        if self.mode == "test" or self.collecting or not self.ready():
            return None
        self.sender.by_hand = True
        try:
            result = self._learn()
        finally:
            self.sender.by_hand = False
        if self.agent.signal is not None:
            self.agent.obey()
        return result

    def ready(self) -> bool:
        """Return whether there is enough to learn from."""
        return True

    def due(self) -> bool:
        """Return whether rows are stored that the schedule itself will send: the updates of others wait for them in sync mode."""
        return self.learns

    def _learn(self) -> dict[str, Any] | None:
        raise NotEnoughRows(f"{self.where}: {type(self).__name__} keeps no rows; use OnPolicyHelper or OffPolicyHelper to learn")

    def settle(self) -> None:
        """Wait for the training requests that are open, and take over what they returned."""
        self.sender.settle()

    def forget_pending(self) -> None:
        """The run was halted: nobody will answer."""
        self.sender.forget()

    def read(self, index: object, key: str, transformed: bool = True) -> Any:
        """A field of stored rows, by position: as the algorithm gets it, or raw.

        What reads rewards or observations from the buffer shall read them here, so that it says which of the two it means. Rows
        are not relabelled by `Hindsight`, and no statistics change.

        Args:
            index, key: As for `ReplayBuffer.get`.
            transformed: False: in the environment's units.
        """
        return read(self, index, key, transformed)

    # --------------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, object]:
        """Counters, generator, the unused part of the drawn noise, and the explorer's memory."""
        noise = {} if self.acting.noise is None else self.acting.noise.state_dict()
        return {"steps": self.steps, **noise, **self.writer.state_dict(), "rng": rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.format.check_choices(state)
        self.forget_pending()  # an update of before has nothing to say to these rows
        self.steps = state["steps"]
        self.writer.load_state_dict(state)
        if self.acting.noise is not None:
            self.acting.noise.load_state_dict(state)
        set_rng_state(self.rng, state["rng"])

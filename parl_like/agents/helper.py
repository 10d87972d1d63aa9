"""AgentHelper: what an agent uses of one task. When it learns, its kind says (`parl_like.agents.update_schedule`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.acting import Acting
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.helper_options import LAID_OUT, HelperOptions
from parl_like.agents.row_format import RowFormat
from parl_like.agents.row_writer import RowWriter
from parl_like.agents.update_schedule import UpdateSchedule
from parl_like.agents.updates import UpdateSender
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.extra_fields import Wanted
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.data.transforms import Transform, Transforms
from parl_like.interfaces import ActingAgent, UsersAgent
from parl_like.learning.algorithm import Window
from parl_like.learning.explorers import Explorer
from parl_like.learning.fixed_settings import Alias, fixed_part
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.wrapper import Communicator
from parl_like.values.errors import NotEnoughRows
from parl_like.values.parts import part
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class AgentHelper(UpdateSchedule):
    """One agent's access to one task. This base class predicts and never learns; `parl_like.agents.off_policy` has those that do.

    Args:
        explorer, store_policy, extras, transforms, obs_space, store_info: See `parl_like.agents.helper_options.HelperOptions`.

    Attributes:
        name: The task's name. role: The agent's player that it is of; None: the agent has none at this task.
        buffer: Raw rows, one lane per environment, shared by all helpers of the task in this process; None if nothing is kept.
        steps: Rows stored by this helper.
        random_until: Rows of this helper before which it acts at random (`OffPolicyHelper.random_steps`).
        mode: 'collect' or 'test'. In test mode actions are greedy, nothing is stored and nothing is learned.
        wait: Whether learning blocks the agent (sync) or not (async).
        where: Agent, task and role, for messages. title: Task and role, as a checkpoint names the helper.
    """

    explorer: Explorer | None = fixed_part("options.explorer", "noise is drawn by this one; assign a setting of it, such as "
                                           "helper.explorer.epsilon")
    store_policy: bool | None = fixed_part("options.store_policy", LAID_OUT)
    extras: tuple[Spec, ...] = fixed_part("options.extras", LAID_OUT)
    transforms: Transforms = fixed_part("options.transforms", LAID_OUT)
    obs_space: gym.Space[object] | None = fixed_part("options.obs_space", LAID_OUT)
    store_info: dict[str, tuple[Spec, object]] = fixed_part("options.store_info", LAID_OUT)
    options: HelperOptions
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
    role: str | None = part("context.role")
    title: str = part("context.title")
    format: RowFormat = part("acting.format")
    steps: int = part("acting.steps")
    random_until: float = part("acting.random_until")
    memory: tuple[Array, ...] = part("acting.memory")
    outputs: Mapping[str, Array] = part("acting.outputs")
    exp_q, store_data = Alias("buffer"), Alias("store")

    def __init__(
        self, *, explorer: Explorer | None = None, store_policy: bool | None = None, extras: Sequence[Spec] = (),
        transforms: Iterable[Transform] = (), obs_space: gym.Space[object] | None = None, store_info: Wanted = (), **more: object,
    ) -> None:
        self.options = HelperOptions(type(self), more, explorer=explorer, store_policy=store_policy, extras=extras,
                                     transforms=transforms, obs_space=obs_space, store_info=store_info)

    def bind(self, context: HelperContext) -> None:
        """Join the helper to its agent and task; called once, by the robot.

        Raises:
            ValueError: the helper's options do not fit the algorithm.
        """
        self.context, options, acts = context, self.options, context.mode != "test"
        options.join(context, self)
        self._check_window()
        options.check_rows(context, self)
        self.acting = Acting(context, options, self.acts_in_step and context.wait and acts)
        self.writer, self.sender = RowWriter(context, self.acting, options), UpdateSender(context)
        if context.buffer is not None:
            self.allocate(context.buffer, self.writer.columns())
            self.writer.check_buffer(context.buffer)
            self._check_buffer(context.buffer)
        if type(self).predict is AgentHelper.predict:
            self.predict = self.acting.predict  # type: ignore[method-assign]  # hot: a call less, 3 % of a request
        if context.model.reward_state:
            self.store = self.acting.earning(self.store)  # type: ignore[method-assign]
        self.bound = True

    def pre_episode(self, agent: UsersAgent) -> None:
        """Stage PRE_EPISODE: memory from zero, the explorer's anew; of a vector environment those of its `env_index`."""
        lane = agent.env.env_index if agent.vector else 0
        self.writer.begin(lane)
        self.acting.begin(lane)

    def interrupt(self, rows: Array | None = None) -> None:
        """End the open episodes here, without an end of their own: nothing may look across the cut.

        Args:
            rows: Numbers [k] of the environments of a vector environment that this is about; None: all.
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
        return self.acting.ask(rows)

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
        agent = self.agent
        if agent.signal is not None and not (agent.env is not None and agent.env.owes_rows):
            agent.obey()
        return result

    def _learn(self) -> dict[str, object] | None:
        raise NotEnoughRows(f"{self.where}: {type(self).__name__} keeps no rows; use OnPolicyHelper or OffPolicyHelper to learn")

    def forgo_policy(self) -> None:
        """Send no log-probabilities from here on: this agent, or another of the task, stores actions that have none."""
        self.options.store_policy = False

    def settle(self) -> None:
        """Wait for the training requests that are open, and take over what they returned."""
        self.sender.settle()

    def read(self, index: object, key: str, transformed: bool = True) -> Any:
        """A field of stored rows, by position: as the algorithm gets it, or raw.

        What reads rewards or observations from the buffer shall read them here, so that it says which of the two it means. Rows
        are not relabelled by `Hindsight`, and no statistics change.

        Args:
            index, key: As for `ReplayBuffer.get`.
            transformed: False: in the environment's units.
        """
        return self.writer.read(index, key, transformed)

    # --------------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> State:
        """Return counters, generator, the unused part of the drawn noise, and the explorer's memory."""
        return {**self.acting.state_dict(), **self.writer.state_dict(), "rng": rng_state(self.rng)}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave. Raises SpecError where an action or observation of it chooses what there is not."""
        self.format.check_choices(state)
        self.sender.forget()  # an update of before has nothing to say to these rows
        self.acting.load_state_dict(state)
        self.writer.load_state_dict(state)
        set_rng_state(self.rng, state["rng"])

"""AgentHelper: what an agent uses of one task, and what it remembers for it. When it learns, `parl_like.agents.off_policy`
says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents import helper_checks
from parl_like.agents.actor import Actor
from parl_like.agents.helper_checks import check_buffer, check_explorer, check_options, check_outputs, check_reward, check_rows
from parl_like.agents.row_counts import OnePlayer
from parl_like.agents.row_format import DURATION, MARKS, Marks, RowFormat
from parl_like.data.buffers.fields import is_part
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.extra_fields import KeptColumns, Wanted, info_specs, read
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.data.transforms import Source, Transform, Transforms
from parl_like.environment.factory import REWARD_WEIGHTS, reward_shape
from parl_like.learning.explorers import Explorer, Noise, random_actions
from parl_like.learning.fixed_settings import Alias, fixed
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.tickets import Ticket, joined
from parl_like.tasks.wrapper import Communicator
from parl_like.values.action_codec import Structured, action_map
from parl_like.values.batch import Batch
from parl_like.values.copying import read_only
from parl_like.values.errors import Dropped, NotEnoughRows
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
    obs_space: gym.Space[Any] | None = fixed(_LAID_OUT)
    store_info: dict[str, tuple[Spec, Any]] = fixed(_LAID_OUT)
    exp_q, store_data = Alias("buffer"), Alias("store")
    learns = False
    sends_returns = False  # of candidates, in place of rows
    acts_in_step = False  # whether acting and learning must see the same statistics, where learning waits

    def __init__(
        self, *, explorer: Explorer | None = None, store_policy: bool | None = None, extras: Sequence[Spec] = (),
        transforms: Iterable[Transform] = (), obs_space: gym.Space[Any] | None = None, store_info: Wanted = (),
        **more: Any,
    ) -> None:
        check_options(self, explorer, more)
        self.explorer = explorer
        self.store_policy = store_policy
        self.extras = tuple(extras)
        self.transforms = Transforms(transforms)
        self.obs_space = obs_space
        self.store_info = info_specs(type(self).__name__, store_info)
        self.name = self.where = ""
        self.buffer: ReplayBuffer | None = None
        self.steps = self._random_steps = 0
        self.collecting = False
        self._by_hand = False
        self.wait = True

    # ------------------------------------------------------------------------------------------------------- construction

    def training_rule(self) -> BatchRule:
        """When this schedule's training batches close, unless the task says otherwise."""
        return BatchRule()

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """The buffer that all helpers of the task share; asked of the first helper only."""
        return None

    def bind(
        self, name: str, agent: Actor, communicator: Communicator, lanes: range, buffer: ReplayBuffer | None,
        rng: np.random.Generator, mode: str, wait: bool, transforms: Transforms,
    ) -> None:
        """Joins the helper to its agent and task; called once, by the robot. Raises ValueError where the helper's options do not
        fit the algorithm.

        Args:
            lanes: The agent's lanes in the buffer, one per environment.
            transforms: The task's chain, whose statistics all helpers share.
        """
        self.name, self.agent, self.comm, self.where = name, agent, communicator, f"{agent}, task {name!r}"
        self.mode, self.wait, self.rng, self.buffer = mode, wait, rng, buffer
        self.task = communicator.wrapper.task
        self.model, self.window = self.task.algorithm.model, self.task.algorithm.window
        self.lanes, self.lane = lanes, lanes.start
        self._vector, self._lane_numbers = agent.vector, np.array(lanes)
        self._bind_explorer()
        self._check_window()
        check_rows(self, transforms)
        if self.window.n_step > 1 and DURATION in self.extras:
            raise ValueError(f"{self.where}: rows with durations look n steps ahead already; set n_step=1, got "
                             f"{self.window.n_step}")
        queue = communicator.wrapper.predictions
        if self.explorer is not None:
            queue.add_explorer(self.explorer, agent)
        if queue.to_env is None:
            queue.to_env = action_map(self.model.act_space)
        self._unmapped = queue.to_env is None
        self.transforms = transforms.for_helper(len(lanes), mode)
        self._changes = bool(len(transforms))
        self._update = -1  # that the transforms were prepared for
        self._in_step = self.acts_in_step and wait and mode != "test"
        if self.learns and mode != "test":
            self.transforms.prepare(-1)  # until its first update
        self.format = RowFormat(str(agent), name, self.model, agent.env, self.transforms, self.obs_space)
        if self.learns and mode != "test" and getattr(self.task.algorithm, "one_reward", False) and reward_shape(agent.env):
            raise ValueError(f"{self.where}: the environment gives rewards of shape {reward_shape(agent.env)}, and "
                             f"{type(self.task.algorithm).__name__} learns from one number a step; {REWARD_WEIGHTS}")
        self._plain, self._state_specs = self.format.plain, self.format.state
        along = self.window.in_order or self.window.rows > 1 or self.transforms.behind or getattr(buffer, "stack_num", 1) > 1
        self._player = OnePlayer(self.where) if along and not agent.vector else None
        self._last: tuple[Any, Mapping[str, Array] | None, int] = (None, None, 0)  # action, outputs, and its row there
        self._pending: list[tuple[Ticket, Callable[[Mapping[str, Any]], None] | None]] = []  # updates that nobody waits for
        self._at_once = 1  # how many of them may be open
        self._state = self._stored_state = self._zero_state()
        self._versioned = agent.robot.remote  # the parameters that act there may not be those that learn
        self._version = 0
        self._keeps_policy = bool(self.store_policy)
        numbers = range(agent.first_env, agent.first_env + len(lanes))  # `lanes` of workers begin at 0 in each
        self._marks = Marks([name for name in self.window.fields if name in MARKS], numbers)
        if self.store_info and mode != "test" and self.task.train and type(self).make_buffer is AgentHelper.make_buffer:
            raise ValueError(f"{self.where}: {type(self).__name__} keeps no rows, so it cannot store_info; use a helper with a "
                             "buffer, such as OffPolicyHelper")
        policy = self.task.policy_specs if buffer is not None and (self._may_give_up or self.store_policy) else ()
        self._kept = KeptColumns(self.where, policy, self.store_info, len(lanes) if agent.vector else 0)
        self._has_more = bool(self._state_specs or self._keeps_policy or self._versioned or self._marks.names or self.extras
                              or self._kept.specs)
        if buffer is not None:
            columns = self.format.columns(self._keeps_policy, self._versioned, self._marks.names,
                                          (*self._kept.specs, *self.extras))
            self.allocate(buffer, [spec.owned_by(f"task {name!r}") for spec in columns])
            self._check_buffer(buffer)
        self.bound = True

    def _bind_explorer(self) -> None:
        algorithm = self.task.algorithm
        # A copy: what it remembers of episodes is this helper's.
        explorer: Any = copy(algorithm.explorer() if self.explorer is None else self.explorer)
        check_explorer(f"{self.where}: explorer of {type(algorithm).__name__}", explorer)
        self.explorer = explorer
        self._may_give_up = self.store_policy is None  # whether rows without a log-probability are fine, too
        if self.store_policy is None:
            self.store_policy = self.mode != "test" and hasattr(explorer, "log_prob") and self._learns_late()
        if self.store_policy:
            if not hasattr(explorer, "log_prob"):
                raise ValueError(f"{self.where}: store_policy needs an explorer with log-probabilities; {explorer!r} has none")
            explorer.log_prob = True
        self._noise = None if explorer is None or explorer.noise is None else Noise(
            explorer, self.rng, self.mode != "test", len(self.lanes))
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

    def pre_episode(self, agent: Actor) -> None:
        """Stage PRE_EPISODE: memory from zero, the explorer's anew; of a vector environment those of its `env_index`."""
        lane = agent.env.env_index if self._vector else 0
        if self._player is not None:
            self._player.begin()
        if self._changes:
            self.transforms.begin(lane)
        if self._noise is not None:
            self._noise.begin(lane)
        self._marks.end(lane)
        if not self._vector:
            self._state = self._zero_state()
        else:
            for part in self._state:
                part[lane] = 0

    def episode_seed(self) -> int | None:
        """The seed with which the agent's next episode begins; None: this helper does not say."""

    @property
    def memory(self) -> tuple[Array, ...]:
        """A recurrent model's memory before the next prediction, and that of the explorer."""
        return self._state if self._noise is None else (*self._state, *self._noise.memory)

    @memory.setter
    def memory(self, value: tuple[Array, ...]) -> None:
        n = len(self._state_specs)
        self._state = value[:n]
        if self._noise is not None:
            self._noise.memory = value[n:]

    def explore(self) -> None:
        """Draws actions also in test mode."""
        if self._noise is not None:
            self._noise.drawn = True

    def interrupt(self, rows: Array | None = None) -> None:
        """The open episodes end here without an end of their own: nothing may look across the cut.

        Args:
            rows: Numbers of the environments of a vector environment that this is about; None: all.
        """
        if self._player is not None:
            self._player.begin()
        self._marks.end(slice(None) if rows is None else rows)
        if self.buffer is not None:
            for lane in self.lanes if rows is None else self._lane_numbers[rows].tolist():
                self.buffer.truncate_open(lane)

    def _zero_state(self) -> tuple[Array, ...]:
        zeros = (spec.zeros(len(self.lanes)) for spec in self._state_specs.values())
        return tuple(zeros) if self._vector else tuple(rows[0] for rows in zeros)

    # ------------------------------------------------------------------------------------------------------------- acting

    @property
    def collecting(self) -> bool | str:
        """True while `Robot.collect` runs: rows are stored, nothing is learned; 'random' where it acts at random."""
        return self._collecting

    @collecting.setter
    def collecting(self, value: bool | str) -> None:
        self._collecting = value
        self.random_until: float = math.inf if value == "random" else self._random_steps

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
        agent = self.agent
        if agent.signal is not None:
            agent.obey()
        values = (obs,) if self._plain else self._transformed(obs) if self._changes else self.format.flat(obs, self.format.inputs)
        if self._state_specs:
            self._stored_state = self._state
            values += self._state
        if self._vector:
            return self._predict_rows(values)
        noise = self._noise
        if noise is not None:  # written out: a call would cost 3 % of a request
            values += (noise.left.pop() if noise.left else noise.draw(),)
        ticket = self.comm.predict(values)
        row = ticket.start
        if self._state_specs:
            self._state = tuple(part[row] for part in helper_checks.memory_of(self, ticket.out))
        self._version = ticket.version
        if ticket.acts is None:
            return Batch.nest({name: value[row] for name, value in ticket.out.items()})
        if self.steps < self.random_until:
            return self._at_random(values, {name: value[row : row + 1] for name, value in ticket.out.items()}, 1)
        act = ticket.acts[row]
        self._last = (act, ticket.out, row)
        return act

    def _predict_rows(self, values: tuple[Any, ...]) -> Any:
        n = len(self.lanes)
        if self._noise is not None:
            values += (self._noise.rows(n),)
        tickets = self.comm.predict_rows(values, n)
        out = joined(tickets)
        self._version = tickets[0].version
        if self._state_specs:
            # Copies: an episode's begin writes zeros here.
            self._state = tuple(np.array(part) for part in helper_checks.memory_of(self, out))
        if tickets[0].acts is None:
            return Batch.nest(out)
        if self.steps < self.random_until:
            return self._at_random(values, out, n)
        to_env = self.comm.wrapper.predictions.to_env
        act = (to_env(out) if type(to_env) is Structured else
               read_only(np.asarray([a for t in tickets for a in t.acts[t.start : t.start + t.rows]])))
        self._last = (act, out, -1)
        return act

    def _at_random(self, values: tuple[Any, ...], out: dict[str, Array], n: int) -> Any:
        """Takes random actions instead of those that the task gave for `values`. It was asked all the same, for its memory, and
        so that agents keep step."""
        masks = {name[4:]: np.asarray(value) for name, value in zip(self.format.inputs, values, strict=False)
                 if is_part(name, "obs.mask")}
        out |= random_actions(self.model.act_space, self.rng, n, masks)
        queue = self.comm.wrapper.predictions
        acts: Any = queue.actions(out)
        if not self._vector:
            self._last = (acts[0], out, 0)
        else:
            self._last = (queue.to_env(out) if type(queue.to_env) is Structured else read_only(np.asarray(acts)), out, -1)
        return self._last[0]

    def _transformed(self, obs: Any) -> tuple[Any, ...]:
        """Raw observations as the model gets them, in the order of its inputs."""
        if self._in_step and self._update != self.task.learns:
            self._prepare()
        names = self.format.raw_names
        raw = dict(zip(names, map(np.asarray, self.format.flat(obs, names)), strict=True))
        if not self._vector:
            raw = {name: value[None] for name, value in raw.items()}
        made = self.transforms.observe(raw)
        return tuple(made[name] if self._vector else made[name][0] for name in self.format.inputs)

    def _prepare(self) -> None:
        """The next rows are for the update after those that the task has given so far; statistics stand still until it is
        over."""
        # Rows that wait belong to that update, and were made ready for it: nothing is renewed before they are learned from.
        self._update = -1 if self.comm.wrapper.trainings.rows else self.task.learns
        self.transforms.prepare(self._update)

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

    @property
    def outputs(self) -> Mapping[str, Array]:
        """Return what the task gave for the last `predict`: flat output name → [...], [n, ...] of a vector environment;
        read-only."""
        _, out, row = self._last
        if out is None:
            raise NotEnoughRows(f"{self.where}: nothing was predicted yet")
        return {name: read_only(value) if row < 0 else read_only(value)[row] for name, value in out.items()}

    # ------------------------------------------------------------------------------------------------------------- storing

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any, info: Mapping[str, Any] | None = None,
        mask: Array | None = None, extra: Mapping[str, Any] | None = None,
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
        buffer = self.buffer
        if buffer is None:
            return
        if self._plain:
            head, tail = (obs,), (obs_next,)
        else:
            names = self.format.raw_names
            head, tail = self.format.flat(obs, names), self.format.flat(obs_next, names)
        acts = (act,) if self._unmapped else self._raw_acts(act)
        check_reward(self, rew)
        values: tuple[Any, ...] = (*head, *acts, rew, terminated, truncated, *tail)
        if self._has_more or extra is not None:
            values += self._more(act, extra or {}, info, terminated, truncated)
        try:
            if self._vector:
                lanes, ends = self._lane_numbers, np.logical_or(terminated, truncated)
                if mask is not None and not mask.all():
                    lanes, ends, values = lanes[mask], ends[mask], tuple(np.asarray(v)[mask] for v in values)
                buffer.push_rows(lanes, values)
                n, ended = len(lanes), int(ends.sum())
            else:
                n, ended = 1, terminated or truncated
                if ended or not self.steps:
                    helper_checks.check_places(self, obs, rew, obs_next, terminated, truncated)
                player = self._player
                if player is not None:
                    if head[0] is not player.end[0]:  # a call for each row would cost 1 % of a step
                        player.other_row(head)
                    player.end = tail
                    if ended:
                        player.begin()
                buffer.push(self.lane, values)
            if self._marks.names:
                self._marks.stored((slice(None) if mask is None else mask) if self._vector else 0,
                                   ends if self._vector else np.bool_(ended))
        except ValueError as error:
            raise type(error)(f"{self.agent}: {error}{helper_checks.ORDER}") from None
        self.steps += n
        if self._changes:
            self.transforms.reward(np.asarray(rew) if mask is None else np.asarray(rew)[mask])  # for statistics of the rollout
        self._after_store(n, ended)

    def _raw_acts(self, act: Any) -> tuple[Any, ...]:
        """The arrays of an action in the policy's own units: what the explorer made, or the inverse of the map for an action from
        elsewhere."""
        last, out, row = self._last
        to_env = self.comm.wrapper.predictions.to_env
        if act is last and out is not None:
            names = to_env.names if type(to_env) is Structured else ("act",)
            return tuple([out[name][row] if row >= 0 else out[name] for name in names])
        return to_env.inverse(act) if type(to_env) is Structured else (to_env.inverse(np.asarray(act)),)

    def _more(self, act: Any, extra: Mapping[str, Any], info: Any, terminated: Any, truncated: Any) -> tuple[Any, ...]:
        """Memory before the action, its log-probability, the version of the parameters, the marks, what else is kept, and the
        extras: the columns after `obs_next`."""
        values: tuple[Any, ...] = self._stored_state
        if self._keeps_policy:
            values += (self._log_prob(act),)
        if self._versioned:
            values += (self._version if not self._vector else np.full(len(self.lanes), self._version),)
        values += self._marks.values(slice(None) if self._vector else 0)
        if self._kept.specs:
            values += self._kept.values(act, self._last, info, np.logical_or(terminated, truncated))
        if extra.keys() != {s.name for s in self.extras}:
            raise ValueError(f"{self.where}: store got extra {sorted(extra)}; expected {[s.name for s in self.extras]}, as the "
                             "helper's `extras` say")
        return values + tuple(extra[s.name] for s in self.extras)

    def _log_prob(self, act: Any) -> Any:
        """The log-probability of the action that is stored."""
        last, out, row = self._last
        if act is last and out is not None:
            return out["log_prob"][row] if row >= 0 else out["log_prob"]
        if not self._may_give_up:
            raise ValueError(f"{self.where}: store_policy keeps the log-probability of what predict returned last; store that "
                             f"action, {act!r} is another")
        # A task that learns from the actions of another has none, and stores none from here on; all helpers of a task send the
        # same fields.
        for agent in self.agent.robot.agents:
            vars(agent.helpers[self.name])["store_policy"] = False
        return np.zeros(len(self.lanes), np.float32) if self._vector else 0.0

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
        self._by_hand = True
        try:
            result = self._learn()
        finally:
            self._by_hand = False
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

    def _send(self, rows: Mapping[str, Array], done: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any] | None:
        """Sends `rows`; `done` gets the training return once it is there."""
        self.settle(self._at_once - 1)
        agent = self.agent
        steps, agent.learned_at = agent.steps - agent.learned_at, agent.steps
        ticket = self.comm.put_training(rows, max(steps, 1), not self._by_hand)
        if not self.wait:
            self._pending.append((ticket, done))
            return None
        return self._answer(ticket, done)

    def _answer(self, ticket: Ticket, done: Callable[[Mapping[str, Any]], None] | None) -> dict[str, Any]:
        result = self.comm.get(ticket)
        if done is not None:
            done(result)
        return result

    def settle(self, leave: int = 0) -> None:
        """Waits for the training requests that are open, but for the newest `leave`, and takes over what they returned."""
        while len(self._pending) > leave:
            with suppress(Dropped):  # counted by the queue
                self._answer(*self._pending.pop(0))

    def forget_pending(self) -> None:
        """The run was halted: nobody will answer."""
        self._pending.clear()

    def read(self, index: Any, key: str, transformed: bool = True) -> Any:
        """A field of stored rows, by position: as the algorithm gets it, or raw.

        What reads rewards or observations from the buffer shall read them here, so that it says which of the two it means. Rows
        are not relabelled by `Hindsight`, and no statistics change.

        Args:
            index, key: As for `ReplayBuffer.get`.
            transformed: False: in the environment's units.
        """
        return read(self, index, key, transformed)

    def _replayed(self, rows: dict[str, Array], indices: Array, last_index: Array, real: Array | None = None) -> dict[str, Array]:
        """Raw rows of the buffer as the algorithm gets them; the caller holds the buffer's lock."""
        assert self.buffer is not None
        if "number" in self.window.fields:
            rows["number"] = self.buffer.serials(indices) + (indices // self.buffer.lane_size << 40)
        if "next_act" in self.window.fields:
            following = self.buffer.next(last_index)
            rows["has_next"] = following != last_index
            for name, column in self.buffer.take(following, [n for n in self.buffer.columns if is_part(n, "act")]).items():
                column[~rows["has_next"]] = 0
                rows[f"next_{name}"] = column
        if not self._changes:
            return rows
        return self.transforms.replay(rows, Source(self.buffer, indices, self.rng, last_index, real))

    # --------------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Counters, generator, the unused part of the drawn noise, and the explorer's memory."""
        noise = {} if self._noise is None else self._noise.state_dict()
        marks = {"first": self._marks.first.copy(), "episode": self._marks.episode.copy()} if self._marks.names else {}
        return {"steps": self.steps, **noise, **marks, "rng": rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.format.check_choices(state)
        self.forget_pending()  # an update of before has nothing to say to these rows
        self.steps = state["steps"]
        if self._marks.names and "first" in state:
            self._marks.first, self._marks.episode = state["first"].copy(), state["episode"].copy()
        if self._noise is not None:
            self._noise.load_state_dict(state)
        set_rng_state(self.rng, state["rng"])

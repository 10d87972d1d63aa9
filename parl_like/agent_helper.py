"""AgentHelper and its schedules: what an agent uses of one task, what it remembers, and when it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from parl_like.batch import Batch
from parl_like.computation_task import BatchRule
from parl_like.data.archive import rng_state, set_rng_state
from parl_like.data.prioritized import PrioritizedReplayBuffer
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Hindsight, Source, Transform, Transforms
from parl_like.errors import Dropped, NotEnoughRows, unknown
from parl_like.explorer import Explorer
from parl_like.one_player import OnePlayer
from parl_like.spec import Array, Spec, SpecError, leaves, specs_of

if TYPE_CHECKING:
    from parl_like.agent import Agent
    from parl_like.communicator import Communicator, Ticket

NOISE_BLOCK = 64
"""Rows of noise drawn at a time."""

DURATION = Spec("duration", (), np.dtype(np.int64), 1)
"""For `AgentHelper(extras=…)`: the time that the action of a row took, in steps. Without it every action takes one."""


PARAM_VERSION = Spec("param_version", (), np.dtype(np.int64))
"""Column of rows in worker processes: `ComputationTask.version` of the parameters that the action was predicted with."""


class AgentHelper:
    """One agent's access to one task. This base class predicts and never learns; the schedules below say when to learn.

    Args:
        explorer: How predictions become actions; None: the algorithm's default.
        store_policy: Whether the explorer's `log_prob` is stored with each row; needed when rows are learned from after the parameters
            have changed. None: where that may happen (`OnPolicyHelper`) and the explorer has log-probabilities.
        extras: Further columns of the buffer, for values that the agent gives to `store` by name. One of them the algorithms
            know: `DURATION`, the steps that a row's action took; its next state is discounted by γ to that power.
        transforms: What is done to raw observations and rewards on their way to the model (`parl_like.data.transforms`), on rollout and
            again on replay. The buffer keeps raw rows; statistics are shared by all helpers of the task. Build the model for
            `Transforms(transforms).space(space)`. With a `FrameStacker`, predict once per step.
        obs_space: The space of the raw observations, where transforms get others than the environment's.

    Attributes:
        name: The task's name.
        buffer: Raw rows, one lane per environment, shared by all helpers of the task in this process; None if nothing is kept.
        steps: Rows stored by this helper.
        collecting: True while `Robot.collect` runs: rows are stored, nothing is learned.
        mode: 'collect' or 'test'. In test mode actions are greedy, nothing is stored and nothing is learned.
    """

    learns = False
    acts_in_step = False

    def __init__(
        self, *, explorer: Explorer | None = None, store_policy: bool | None = None, extras: Sequence[Spec] = (),
        transforms: Iterable[Transform] = (), obs_space: gym.Space[Any] | None = None,
    ) -> None:
        self.explorer = explorer
        self.store_policy = store_policy
        self._may_give_up = False  # whether rows without a log-probability are fine, too
        self.extras = tuple(extras)
        self.transforms = Transforms(transforms)
        self.obs_space = obs_space
        self.name = ""
        self.buffer: ReplayBuffer | None = None
        self.steps = 0
        self.collecting = False
        self.wait = True

    # ------------------------------------------------------------------------------------------------------- construction

    def training_rule(self) -> BatchRule:
        """When this schedule's training batches close, unless the task says otherwise."""
        return BatchRule()

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """The buffer that all helpers of the task share; asked of the first helper only."""
        return None

    def bind(
        self, name: str, agent: Agent, communicator: Communicator, lanes: range, buffer: ReplayBuffer | None,
        rng: np.random.Generator, mode: str, wait: bool, transforms: Transforms,
    ) -> None:
        """Joins the helper to its agent and task; called once, by the robot.

        Args:
            lanes: The agent's lanes in the buffer, one per environment.
            transforms: The task's chain, whose statistics all helpers share.
            wait: Whether learning blocks the agent (sync) or not (async).

        Raises:
            ValueError: the helper's options do not fit the algorithm.
        """
        self.name, self.agent, self.comm = name, agent, communicator
        self.mode, self.wait, self.rng, self.buffer = mode, wait, rng, buffer
        self.task = communicator.wrapper.task
        algorithm = self.task.algorithm
        self.model = algorithm.model
        self.window = algorithm.window
        if self.explorer is None:
            self.explorer = algorithm.explorer()
        if self.store_policy is None:
            self._may_give_up = True
            self.store_policy = mode != "test" and hasattr(self.explorer, "log_prob") and self._learns_late()
        if self.store_policy:
            if not hasattr(self.explorer, "log_prob"):
                raise ValueError(f"{agent}, task {name!r}: store_policy needs an explorer with log-probabilities; {self.explorer!r} has none")
            self.explorer.log_prob = True  # type: ignore[union-attr]
        self._check_window()
        if self.window.n_step > 1 and DURATION in self.extras:
            raise ValueError(f"{agent}, task {name!r}: rows with durations look n steps ahead already; set n_step=1, got {self.window.n_step}")
        if self.explorer is not None:
            self._check_width(self.explorer)
            communicator.wrapper.predictions.add_explorer(self.explorer, agent)
        queue = communicator.wrapper.predictions
        if queue.to_env is None:
            queue.to_env = action_map(self.model.act_space)
        self._unmapped = queue.to_env is None
        self.lanes, self.lane = lanes, lanes.start
        self._vector, self._lane_numbers = agent.vector, np.array(lanes)
        inputs = self.model.inputs()
        self._obs_names = [n for n in inputs if n == "obs" or n.startswith("obs.")]
        self.transforms = transforms.for_helper(len(lanes), mode)
        along = self.window.in_order or self.window.rows > 1 or self.transforms.behind or getattr(buffer, "stack_num", 1) > 1
        self._player = OnePlayer(f"{agent}, task {name!r}") if along and not agent.vector else None
        raw = self._raw_specs(inputs)
        self._raw_names = list(raw)
        self._changes = bool(len(transforms))
        self._lesson = -1  # that the transforms were prepared for
        if self.learns and mode != "test":
            self.transforms.prepare(-1)  # until its first lesson
        self._in_step = self.acts_in_step and wait and mode != "test"  # whether acting and learning see one set of statistics
        self._state_specs = {n: s for n, s in inputs.items() if n.startswith("state")}
        self._plain = self._obs_names == ["obs"] and not self._changes
        self._noisy = self.explorer is not None and self.explorer.noise is not None
        self._exploring = self._noisy and mode != "test"
        self._noise: list[Any] = []
        self._noise_at = 0
        self._noise_rng: dict[str, Any] = rng_state(rng)
        self._acted = 0
        self._last: tuple[Any, Mapping[str, Array] | None, int] = (None, None, 0)  # action, outputs, and its row there
        self._pending: tuple[Ticket, Callable[[Mapping[str, Any]], None] | None] | None = None
        self._state = self._stored_state = self._zero_state()
        self._versioned = agent.robot.remote  # the parameters that act there may not be those that learn
        self._version = 0
        self._has_more = bool(self._state_specs or self.store_policy or self._versioned or self.extras)
        if buffer is not None:
            specs = [Spec(n, s.shape, s.dtype) for n, s in raw.items()]  # without bounds: those were checked when predict asked
            specs += [_raw_spec(self.model.act_space, s) for s in self.model.act_specs.values()]
            # Of several kinds of reward an environment may say how many (`reward_space`); the algorithm combines them.
            rewards = getattr(getattr(agent.env, "unwrapped", None), "reward_space", None)
            rew_shape = rewards.shape if isinstance(rewards, gym.spaces.Box) else ()
            specs += [Spec("rew", rew_shape, np.dtype(np.float64)), Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool))]
            specs += [Spec("obs_next" + n[3:], s.shape, s.dtype) for n, s in raw.items()]
            specs += list(self._state_specs.values())
            if self.store_policy:
                specs.append(Spec("policy.log_prob", (), np.dtype(np.float32)))
            if self._versioned:
                specs.append(PARAM_VERSION)
            self._keeps_policy = bool(self.store_policy)
            self.allocate(buffer, [s.owned_by(f"task {name!r}") for s in (*specs, *self.extras)])
            self._check_buffer(buffer, raw)

    def _check_buffer(self, buffer: ReplayBuffer, raw: Mapping[str, Spec]) -> None:
        """Refuses lanes that are too short for what is looked at together, and frames other than the model's."""
        rows = self.window.rows + max(self.transforms.behind, buffer.stack_num - 1)
        if rows > buffer.lane_size and not self.window.in_order:
            raise ValueError(f"{self.agent}, task {self.name!r}: the algorithm looks at {rows} rows in a row, a lane of the buffer holds "
                             f"{buffer.lane_size}; give the helper size ≥ {rows * buffer.n_lanes}")
        for name, spec in raw.items():
            if buffer.read_shape(name) != spec.shape:
                raise spec.owned_by(f"{self.agent}, task {self.name!r}").error(
                    f"{buffer.read_shape(name)} from {buffer!r}", "stack_num goes with observations that come stacked (save_only_last_obs); "
                    "for single frames use the transform FrameStacker")

    def _check_window(self) -> None:
        """Refuses an algorithm that asks for rows which this schedule does not send."""

    def _learns_late(self) -> bool:
        """Whether parameters may change between an action and its lesson, and this schedule cares."""
        return False

    def _raw_specs(self, inputs: Mapping[str, Spec]) -> dict[str, Spec]:
        """The observations as they come, by flat names: the model's inputs, or what the transforms make them from."""
        if not len(self.transforms):
            return {name: inputs[name] for name in self._obs_names}
        space = self.obs_space if self.obs_space is not None else getattr(self.agent.env, "observation_space", None)
        if space is None:
            raise ValueError(f"{self.agent}, task {self.name!r}: transforms need the space of raw observations, and there is no environment; "
                             "give the helper obs_space=")
        made, owner = specs_of(self.transforms.space(space), "obs"), f"{self.agent}, task {self.name!r}"
        if made.keys() != set(self._obs_names):
            raise SpecError(f"{owner}, transforms: the model takes {', '.join(self._obs_names)}, the transforms make {', '.join(made)}; build "
                            "it for Transforms([…]).space(env.observation_space)")
        for name, spec in made.items():
            if (spec.shape, spec.dtype) != (inputs[name].shape, inputs[name].dtype):
                raise inputs[name].owned_by(owner).error(f"{spec.shape} {spec.dtype} from {self.transforms!r}",
                                                         "build the model for Transforms([…]).space(env.observation_space)")
        return specs_of(space, "obs")

    def _check_width(self, explorer: Explorer) -> None:
        """Refuses a prediction with fewer or more numbers per row than there are actions."""
        shape = self.task.output_shapes.get(explorer.reads or "")
        space = self.model.act_space
        if shape is not None and isinstance(space, gym.spaces.Discrete) and shape != (int(space.n),):
            raise SpecError(f"task {self.name!r}, output of predict, field {explorer.reads!r}: expected ('N', {space.n}), one number per action, "
                            f"got ('N', {', '.join(map(str, shape))}); look at the last layer of {type(self.model).__name__}")

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Declares the columns of a row, in the order in which `store` writes them."""
        buffer.allocate(specs)

    def pre_episode(self, agent: Agent) -> None:
        """Stage PRE_EPISODE: recurrent memory starts from zero; of a vector environment that of `env.env_index`."""
        if self._player is not None:
            self._player.begin()
        if self._changes:
            self.transforms.begin(agent.env.env_index if self._vector else 0)
        if not self._vector:
            self._state = self._zero_state()
        else:
            for part in self._state:
                part[agent.env.env_index] = 0

    def explore(self) -> None:
        """Draws actions also in test mode."""
        self._exploring = self._noisy

    def interrupt(self, rows: Array | None = None) -> None:
        """The open episodes end here without an end of their own: nothing may look across the seam.

        Args:
            rows: Numbers of the environments of a vector environment that this is about; None: all.
        """
        if self._player is not None:
            self._player.begin()
        if self.buffer is not None:
            for lane in self.lanes if rows is None else self._lane_numbers[rows].tolist():
                self.buffer.truncate_open(lane)

    def _zero_state(self) -> tuple[Array, ...]:
        shape = (len(self.lanes),) if self._vector else ()
        return tuple(np.zeros((*shape, *s.shape), s.dtype) for s in self._state_specs.values())

    # ------------------------------------------------------------------------------------------------------------- acting

    def predict(self, obs: Any) -> Any:
        """Asks the task, explores, and returns what the environment takes.

        Args:
            obs: One observation, an array or a nested dict, by the model's observation space; n of them, stacked, for an agent
                with a vector environment.

        Returns:
            The action: int for Discrete, array for Box (clipped to [−1, 1] and scaled to the bounds). From a task without
            actions: a `Batch` of its outputs for this row.

        Raises:
            SpecError: `obs` does not fit. TaskFailed: the task raised.
        """
        agent = self.agent
        if agent.signal is not None:
            agent.obey()
        values = (obs,) if self._plain else self._transformed(obs) if self._changes else self._flatten(obs, self._obs_names)
        if self._state_specs:
            self._stored_state = self._state
            values += self._state
        if self._vector:
            return self._predict_rows(values)
        if self._noisy:
            at = self._noise_at
            if at == len(self._noise):
                self._draw()
                at = 0
            values += (self._noise[at],)
            self._noise_at = at + 1
        ticket = self.comm.predict(values)
        row = ticket.start
        if self._state_specs:
            self._state = tuple(part[row] for part in self._new_state(ticket.out))
        self._version = ticket.version
        if ticket.acts is None:
            return Batch.nest({name: value[row] for name, value in ticket.out.items()})
        act = ticket.acts[row]
        self._last = (act, ticket.out, row)
        return act

    def _transformed(self, obs: Any) -> tuple[Any, ...]:
        """Raw observations as the model gets them, in the order of its inputs."""
        if self._in_step and self._lesson != self.task.learns:
            self._prepare()
        raw = dict(zip(self._raw_names, map(np.asarray, self._flatten(obs, self._raw_names)), strict=True))
        if not self._vector:
            raw = {name: value[None] for name, value in raw.items()}
        made = self.transforms.observe(raw)
        return tuple(made[name] if self._vector else made[name][0] for name in self._obs_names)

    def _prepare(self) -> None:
        """The next rows are for the lesson after those that the task has given so far; statistics stand still until it is over."""
        if self._changes:
            # Rows that wait belong to that lesson, and were made ready for it: nothing is renewed before they are learned from.
            self._lesson = -1 if self.comm.wrapper.trainings.rows else self.task.learns
            self.transforms.prepare(self._lesson)

    def _new_state(self, out: Mapping[str, Array]) -> list[Array]:
        missing = self._state_specs.keys() - out.keys()
        if missing:
            raise SpecError(f"{self.agent}: task {self.name!r}, field {min(missing)!r}: expected in the output of predict, got "
                            f"{', '.join(out)}; this model has a memory, so the algorithm must return `state`")
        return [out[name] for name in self._state_specs]

    def _draw(self) -> None:
        """The next block of noise, as rows. The generator's state before it is kept, so that a checkpoint can redraw it."""
        assert self.explorer is not None
        if self._exploring:
            self._noise_rng = rng_state(self.rng)
            block = self.explorer.draw(self.rng, self._acted, NOISE_BLOCK)
            self._noise = block.tolist() if block.ndim == 1 else list(block)
            self._acted += NOISE_BLOCK
        else:
            self._noise = [self.explorer.greedy()] * NOISE_BLOCK

    def _predict_rows(self, values: tuple[Any, ...]) -> Any:
        n = len(self.lanes)
        if self._noisy:
            assert self.explorer is not None and self.explorer.noise is not None
            if self._exploring:
                noise = self.explorer.draw(self.rng, self._acted, n)
                self._acted += n
            else:
                noise = np.array([self.explorer.greedy()] * n, self.explorer.noise.dtype)
            values += (noise,)
        tickets = self.comm.predict_rows(values, n)
        out = _joined(tickets)
        self._version = tickets[0].version
        if self._state_specs:
            self._state = tuple(np.array(part) for part in self._new_state(out))  # copies: an episode's begin writes zeros here
        if tickets[0].acts is None:
            return Batch.nest(out)
        act = np.asarray([a for t in tickets for a in t.acts[t.start : t.start + t.rows]])
        self._last = (act, out, -1)
        return act

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
        names = [spec.name for spec in self.comm.wrapper.request_specs]
        if rows.keys() != set(names):
            raise SpecError(f"{self.agent}: task {self.name!r}, ask: expected {', '.join(names)}, got {', '.join(rows)}")
        tickets = self.comm.predict_rows(tuple(rows[name] for name in names), len(rows[names[0]]))
        return _joined(tickets)

    @property
    def outputs(self) -> Mapping[str, Array]:
        """Everything that the task gave for the last `predict`, flat output name → [...], or [n, ...] for a vector environment."""
        _, out, row = self._last
        if out is None:
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: nothing was predicted yet")
        return out if row < 0 else {name: value[row] for name, value in out.items()}

    def _flatten(self, value: Any, names: Sequence[str], root: str = "obs") -> tuple[Any, ...]:
        flat = dict(leaves(value, root))
        if flat.keys() != set(names):
            missing, extra = sorted(set(names) - flat.keys()), sorted(flat.keys() - set(names))
            raise SpecError(
                f"{self.agent}: task {self.name!r}, field 'obs': expected {', '.join(names)}, got {', '.join(flat) or 'nothing'} (missing "
                f"{missing}, unexpected {extra}); give the keys of the model's observation space"
            )
        return tuple(flat[name] for name in names)

    def _raw_act(self, act: Any) -> Any:
        """The action in the policy's own units: what the explorer made, or the inverse of the map for an action from elsewhere."""
        last, out, row = self._last
        if act is last and out is not None:
            return out["act"][row] if row >= 0 else out["act"]
        return self.comm.wrapper.predictions.to_env.inverse(np.asarray(act))

    # ------------------------------------------------------------------------------------------------------------- storing

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any, info: Mapping[str, Any] | None = None,
        mask: Array | None = None, extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Stores one transition (n of them for a vector environment) and learns when the schedule says so.

        Args:
            obs, act, rew, obs_next, terminated, truncated: One step; `obs_next` is what the environment returned with `rew`,
                at an episode's end the true final observation.
            info: Not stored; here for the plain call with what `env.step` returned.
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
            head, tail = self._flatten(obs, self._raw_names), self._flatten(obs_next, self._raw_names)
        values = (*head, act if self._unmapped else self._raw_act(act), rew, terminated, truncated, *tail)
        if self._has_more or extra is not None:
            values += self._more(act, extra or {})
        try:
            if self._vector:
                n, ended = self._store_rows(buffer, values, np.logical_or(terminated, truncated), mask)
            else:
                if self._player is not None:
                    self._player.row(head, tail, terminated or truncated)
                buffer.push(self.lane, values)
                n, ended = 1, terminated or truncated
        except ValueError as error:
            raise type(error)(f"{self.agent}: {error}") from None
        self.steps += n
        if self._changes:
            self.transforms.reward(np.asarray(rew) if mask is None else np.asarray(rew)[mask])  # for statistics of the rollout
        self._after_store(n, ended)

    def _more(self, act: Any, extra: Mapping[str, Any]) -> tuple[Any, ...]:
        """Memory before the action, its log-probability, the version of the parameters, and the extras: the columns after `obs_next`."""
        values: tuple[Any, ...] = self._stored_state
        if self._keeps_policy:
            values += (self._log_prob(act),)
        if self._versioned:
            values += (self._version if not self._vector else np.full(len(self.lanes), self._version),)
        if extra.keys() != {s.name for s in self.extras}:
            raise ValueError(f"{self.agent}, task {self.name!r}: store got extra {sorted(extra)}; expected {[s.name for s in self.extras]}, "
                             "as the helper's `extras` say")
        return values + tuple(extra[s.name] for s in self.extras)

    def _log_prob(self, act: Any) -> Any:
        """The log-probability of the action that is stored."""
        last, out, row = self._last
        if act is last and out is not None:
            log_prob = out["log_prob"]
            return log_prob[row] if row >= 0 else log_prob
        if not self._may_give_up:
            raise ValueError(f"{self.agent}, task {self.name!r}: store_policy keeps the log-probability of what predict returned "
                             f"last; store that action, {act!r} is another")
        # A task that learns from the actions of another has none, and stores none from here on; all helpers of a task send the same fields.
        for agent in self.agent.robot.agents:
            agent.helpers[self.name].store_policy = False
        return np.zeros(len(self.lanes), np.float32) if self._vector else 0.0

    def _store_rows(self, buffer: ReplayBuffer, values: tuple[Any, ...], ended: Array, mask: Array | None) -> tuple[int, int]:
        """Stores the real rows; returns how many, and how many of them end an episode."""
        lanes = self._lane_numbers
        if mask is not None and not mask.all():
            lanes, ended = lanes[mask], ended[mask]
            values = tuple(np.asarray(v)[mask] for v in values)
        buffer.push_rows(lanes, values)
        return len(lanes), int(ended.sum())

    def _after_store(self, rows: int, ended: int) -> None:
        """The schedule: called after each stored step with the number of its rows, and of those that ended an episode."""

    # ------------------------------------------------------------------------------------------------------------ learning

    def learn(self) -> dict[str, Any] | None:
        """Sends one training request now, whatever the schedule.

        Returns:
            The training return (metrics, and arrays with one entry per row sent); None when learning does not wait, in test mode,
            and while the robot only collects.

        Raises:
            NotEnoughRows: the buffer cannot fill the request.
        """
        if self.mode == "test" or self.collecting:
            return None
        result = self._learn()
        if self.agent.signal is not None:
            self.agent.obey()
        return result

    def _learn(self) -> dict[str, Any] | None:
        raise NotEnoughRows(f"{self.agent}, task {self.name!r}: {type(self).__name__} keeps no rows; use OnPolicyHelper or OffPolicyHelper to learn")

    def read(self, index: Any, key: str, transformed: bool = True) -> Any:
        """A field of stored rows, by position: as the algorithm gets it, or raw.

        What reads rewards or observations from the buffer shall read them here, so that it says which of the two it means. Rows are
        not relabelled by `Hindsight`, and no statistics change.

        Args:
            index, key: As for `ReplayBuffer.get`.
            transformed: False: in the environment's units.
        """
        buffer = self.buffer
        if buffer is None:
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: {type(self).__name__} keeps no rows to read")
        if not transformed or not self._changes:
            return buffer.get(index, key)
        positions = np.asarray(buffer.positions(index))
        chain = Transforms(t for t in self.transforms.for_helper(1, "test") if not isinstance(t, Hindsight))
        with buffer.lock:
            rows = buffer.gather(positions.ravel())
            rows = chain.replay(rows, Source(buffer, positions.ravel(), self.rng, positions.ravel()))
        rows["done"] = rows["terminated"] | rows["truncated"]
        flat = {n: c.reshape((*positions.shape, *c.shape[1:]))[()] for n, c in rows.items() if n == key or n.startswith(key + ".")}
        if not flat:
            raise KeyError(f"{self.agent}, task {self.name!r}: " + unknown("field", key, rows))
        return flat[key] if key in flat else Batch.nest({name[len(key) + 1 :]: column for name, column in flat.items()})

    def _replayed(self, rows: dict[str, Array], indices: Array, last_index: Array, real: Array | None = None) -> dict[str, Array]:
        """Raw rows of the buffer as the algorithm gets them; the caller holds the buffer's lock."""
        if not self._changes:
            return rows
        assert self.buffer is not None
        return self.transforms.replay(rows, Source(self.buffer, indices, self.rng, last_index, real))

    def _send(self, rows: Mapping[str, Array], done: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any] | None:
        """Sends `rows`; `done` gets the training return once it is there."""
        self.settle()  # at most one request of an agent and task is open
        ticket = self.comm.put_training(rows)
        if not self.wait:
            self._pending = ticket, done
            return None
        result = self.comm.get(ticket)
        if done is not None:
            done(result)
        return result

    def settle(self) -> None:
        """Waits for the training request that is open, if any, and takes over what it returned."""
        if self._pending is not None:
            pending, answered = self._pending
            self._pending = None
            with suppress(Dropped):  # counted by the queue
                result = self.comm.get(pending)
                if answered is not None:
                    answered(result)

    def forget_pending(self) -> None:
        """The run was halted: nobody will answer."""
        self._pending = None

    # --------------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Counters, generator and the unused part of the drawn noise (as the generator's state before it and a position)."""
        return {"steps": self.steps, "acted": self._acted, "noise_at": self._noise_at, "noise_size": len(self._noise),
                "noise_rng": self._noise_rng, "rng": rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.forget_pending()  # a lesson of before has nothing to say to these rows
        self.steps = state["steps"]
        self._noise, self._noise_at = [], 0
        if state["noise_size"] and self._exploring:
            set_rng_state(self.rng, state["noise_rng"])
            self._acted = state["acted"] - NOISE_BLOCK
            self._draw()
            self._noise_at = state["noise_at"]
        self._acted = state["acted"]
        set_rng_state(self.rng, state["rng"])


class OffPolicyHelper(AgentHelper):
    """Learns from random rows of everything that is remembered.

    Args:
        size: Rows that the buffer holds, all agents of the task together.
        buffer: What makes the buffer, from its size, lanes and generator: `ReplayBuffer`, or with other options
            `partial(ReplayBuffer, stack_num=4, ignore_obs_next=True)`, `partial(PrioritizedReplayBuffer, alpha=0.6)`. A prioritised one
            is told the `priority` [N] ≥ 0 of each row, which the algorithm's `learn` must return.
        batch_size: Rows of one training request, which is one learning batch.
        learn_every: Rows stored by this helper between two requests; so many agents learn as often per step as one.
        updates: Requests sent each time.
        warmup: Rows in the buffer before the first request; at least `batch_size`.
        The others: As for `AgentHelper`.
    """

    learns = True

    def __init__(
        self, *, size: int = 100_000, batch_size: int = 64, learn_every: int = 4, updates: int = 1, warmup: int = 0,
        buffer: Callable[[int, int, np.random.Generator], ReplayBuffer] = ReplayBuffer, **options: Any,
    ) -> None:
        super().__init__(**options)
        self._make = buffer
        for name, value in (("size", size), ("batch_size", batch_size), ("learn_every", learn_every), ("updates", updates)):
            if value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        if warmup > size or batch_size > size:
            raise ValueError(f"{type(self).__name__}: warmup ({warmup}) or batch_size ({batch_size}) is above size ({size}); learning could never begin")
        self.size, self.batch_size, self.learn_every, self.updates = size, batch_size, learn_every, updates
        self.warmup = max(warmup, batch_size)
        self._since = 0

    def training_rule(self) -> BatchRule:
        return BatchRule(max_rows=self.batch_size)

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return self._make(self.size, n_lanes, rng)

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        super().allocate(buffer, specs)
        # So many rows, wherever they lie, have one that a whole sequence follows.
        self.warmup = max(self.warmup, self.window.sequence * buffer.n_lanes)

    def _check_window(self) -> None:
        if self.window.in_order:
            raise ValueError(f"{self.agent}, task {self.name!r}: {type(self.task.algorithm).__name__} learns from rows in order (in_order), "
                             f"{type(self).__name__} sends random ones; use OnPolicyHelper or EpisodicHelper")

    def _after_store(self, rows: int, ended: int) -> None:
        if self.collecting:
            return  # not counted either, or the first step after a long collection would send hundreds of requests
        self._since += rows
        while self._since >= self.learn_every:
            self._since -= self.learn_every
            if self._warm():
                for _ in range(self.updates):
                    self._learn()

    def _warm(self) -> bool:
        """Whether the warmup is over; of agents that step together all say the same, so that none learns while others act."""
        buffer = self.buffer
        assert buffer is not None
        rows, lanes = len(buffer), buffer.n_lanes
        # With full lanes of its own an agent waits for nobody: lanes of agents that have left may never fill.
        return (rows - 1) // lanes * lanes + 1 >= self.warmup or all(buffer.is_full(lane) for lane in self.lanes)

    def _learn(self) -> dict[str, Any] | None:
        return self._send(*self.lesson(self.batch_size))

    def lesson(self, n: int) -> tuple[dict[str, Array], Callable[[Mapping[str, Any]], None] | None]:
        """`n` random rows to learn from, and what is to be called with the training return, if anything."""
        buffer = self.buffer
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return self.sample(n)[0], None
        with buffer.lock:  # the serials of the rows that were drawn, not of those that came since
            rows, indices = self.sample(n)
            return rows, partial(self._feed_back, indices, buffer.serials(indices))

    def _feed_back(self, indices: Array, serials: Array, result: Mapping[str, Any]) -> None:
        assert isinstance(self.buffer, PrioritizedReplayBuffer)
        if "priority" not in result:
            raise ValueError(f"{self.agent}, task {self.name!r}: a prioritised buffer needs a `priority` for each row; learn of "
                             f"{type(self.task.algorithm).__name__} returned {', '.join(result)}")
        self.buffer.update_weight(indices, result["priority"], serials)

    def sample(self, n: int) -> tuple[dict[str, Array], Array]:
        """`n` random rows with what the algorithm's window asks for, flat field name → array, and their positions in the buffer.

        Raises:
            NotEnoughRows: the buffer has fewer.
        """
        have = 0 if self.buffer is None else len(self.buffer)
        if self.buffer is None or have < n:
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: learning needs {n} rows, the buffer has {have}; "
                                "store more steps first, or lower batch_size")
        with self.buffer.lock:  # all columns of a row from one moment
            behind = max(self.transforms.behind, self.buffer.stack_num - 1)
            if behind:
                behind += self.window.burn_in  # frames of the rows before the drawn one count, too
            try:
                indices = self.buffer.sample_indices(n, self.rng, self.window.sequence - 1, behind)
            except ValueError as error:
                raise NotEnoughRows(f"{self.agent}, task {self.name!r}: {error}") from None
            return self.rows_at(indices), indices

    def rows_at(self, indices: Array) -> dict[str, Array]:
        """The rows at these positions of the buffer with what the algorithm's window asks for."""
        buffer = self.buffer
        assert buffer is not None
        self._prepare()
        window = self.window
        if window.sequence > 1 or window.burn_in:
            return self._sequences(indices)
        if window.n_step == 1:
            return self._replayed(buffer.gather(indices), indices, indices)
        ahead = buffer.n_step(indices, window.n_step)
        last = ahead["last_index"]
        rows = buffer.gather(indices, last)
        return self._replayed({**rows, "rew": ahead["rew"], "valid": ahead["valid"]}, indices, last)

    def _sequences(self, indices: Array) -> dict[str, Array]:
        buffer, window = self.buffer, self.window
        assert buffer is not None
        positions, valid = buffer.sequences(indices, window.sequence, window.burn_in)
        flat = positions.ravel()
        rows = self._replayed(buffer.gather(flat), flat, flat, valid.ravel())
        out = {name: column.reshape(*positions.shape, *column.shape[1:]) for name, column in rows.items()}
        out |= {name: column[:, 0] for name, column in out.items() if name in self._state_specs}
        if isinstance(buffer, PrioritizedReplayBuffer):
            out["weight"] = buffer.weights(indices)  # of the sequence
        return {**out, "valid": valid}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._since = state["since"]


class OnPolicyHelper(AgentHelper):
    """Learns from the rows since the last time, once, and forgets them.

    Where learning waits, rows that more than one update of the task has made old are dropped unlearned, unless they carry the
    log-probability they were taken with (`store_policy`). That can only happen when agents of one robot learn at different times,
    such as those whose task of another rhythm makes them wait for its updates. So the log-probability is stored by default where
    the robot has several tasks that may learn, where learning does not wait (mode 'async'), and where replicas predict with
    parameters of before (`sync_every` above 1). A robot that drops more than 5 % of a task's rows says so.

    Args:
        unroll: Steps of this agent (of each of its environments) between two training requests.
        The others: As for `AgentHelper`.

    Attributes:
        dropped: Rows dropped as too old.
    """

    learns = True
    acts_in_step = True

    def __init__(self, *, unroll: int = 32, **options: Any) -> None:
        super().__init__(**options)
        if unroll < 1 or unroll != int(unroll):
            raise ValueError(f"{type(self).__name__}: unroll is {unroll}; expected a whole number of at least 1")
        self.unroll = unroll
        self.dropped = 0
        self._unrolled = 0
        self._context: dict[int, int] = {}  # lane → rows at its front that were learned from, and are kept for the frames of later ones
        self._learns = 0  # the task's updates when the newest row was stored
        self._renewed: list[int] = []  # values of `_unrolled` at which the task was found updated

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        # One more: what was collected may fill the unroll already.
        return ReplayBuffer((self.unroll + 1 + self.transforms.behind) * n_lanes, n_lanes, rng)

    def _check_window(self) -> None:
        if self.window.n_step > 1 or self.window.rows > 1:
            raise ValueError(f"{self.agent}, task {self.name!r}: {type(self.task.algorithm).__name__} asks for {self.window}, "
                             f"{type(self).__name__} sends whole segments; use OffPolicyHelper")
        if self.window.in_order is False:
            raise ValueError(f"{self.agent}, task {self.name!r}: {type(self.task.algorithm).__name__} learns from random rows of all that is remembered "
                             f"(off-policy), {type(self).__name__} sends the newest in order, once; use OffPolicyHelper")

    def _check_buffer(self, buffer: ReplayBuffer, raw: Mapping[str, Spec]) -> None:
        super()._check_buffer(buffer, raw)
        if buffer.lane_size < self.unroll + self.transforms.behind:
            raise ValueError(f"{self.agent}, task {self.name!r}: unroll is {self.unroll}, but the task's first helper made a buffer with lanes of "
                             f"{buffer.lane_size} rows; give all helpers of the task the same unroll, or the first the largest")

    def _learns_late(self) -> bool:
        robot, task = self.agent.robot, self.task
        learners = sum(other.train and other.helper is not None for other in robot.tasks.values())
        lags = robot.remote and task.serve == "replica" and task.sync_every > 1
        return not self.wait or learners > 1 or lags

    def _after_store(self, rows: int, ended: int) -> None:
        if self.task.learns != self._learns:
            self._learns = self.task.learns
            self._renewed.append(self._unrolled)
        self._unrolled += 1
        if self.collecting:
            self._check_room()
        elif self._unrolled >= self.unroll:
            self._learn()

    def _check_room(self) -> None:
        if self._unrolled > self.unroll:
            raise ValueError(f"{self.agent}, task {self.name!r}: collected more than {self.unroll} steps, all that this helper holds; "
                             "give it a larger unroll (max_steps), or call update() in between")

    def _learn(self) -> dict[str, Any] | None:
        # An agent that waits does not overwrite its rows, and those of several agents are joined, so copied, anyway.
        return self._send(self.take(copy=not self.wait or len(self.agent.robot.agents) == 1))

    def take(self, copy: bool = True) -> dict[str, Array]:
        """All rows since the last call, in time order per environment, with `last` marking every cut; the buffer forgets them.

        Args:
            copy: Without it perhaps views of the buffer, which the next `store` overwrites.

        Raises:
            NotEnoughRows: there are none.
        """
        segments_and_stale = self._segments()
        dropped = sum(stale for _, _, stale in segments_and_stale)
        self.dropped += dropped
        found = [(at, rows) for at, rows, _ in segments_and_stale if len(at)]
        self.agent.robot.rows.count(self.name, sum(len(at) for at, _ in found), dropped)
        if not found:
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: {self._nothing}; store more steps before learning")
        if self._changes:
            assert self.buffer is not None
            self._prepare()
            with self.buffer.lock:
                segments = [self._replayed(rows, at, at) for at, rows in found]
        else:
            segments = [rows for _, rows in found]
        for segment in segments:
            segment["last"] = segment["terminated"] | segment["truncated"]
            segment["last"][-1] = True
        # The lanes are overwritten while an asynchronous request waits, and rows that are kept move to their front.
        copy = copy or len(segments) > 1 or self._keeps()
        out = {name: np.concatenate([s[name] for s in segments]) for name in segments[0]} if copy else segments[0]
        self._forget()
        if self._keeps_policy and not self.store_policy:
            del out["policy.log_prob"]
        return out

    def ready(self) -> bool:
        """Whether there is something to learn from."""
        return any(len(at) for at, _, _ in self._segments())

    def _segments(self) -> list[tuple[Array, dict[str, Array], int]]:
        """What would be learned from now, per environment: positions, raw rows, perhaps views of the buffer, and how many are too old."""
        buffer = self.buffer
        old = self._renewed[-2] if self.wait and not self.store_policy and len(self._renewed) > 1 else 0
        found = []
        for lane in self.lanes if buffer is not None else ():
            assert buffer is not None
            rows = buffer.lane_rows(lane)
            begin, end = self._context.get(lane, 0), self._to_take(rows)
            stale = min(max(len(rows["rew"]) - (self._unrolled - old) - begin, 0), max(end - begin, 0)) if old else 0
            begin += stale
            if end > begin or stale:
                found.append((buffer.lane_positions(lane)[begin:end], {name: column[begin:end] for name, column in rows.items()}, stale))
        return found

    _nothing = "nothing was stored since the last learning"

    def _to_take(self, rows: Mapping[str, Array]) -> int:
        """How many rows of a lane are learned from now."""
        return len(rows["rew"])

    def _forget(self) -> None:
        """Drops the rows that were taken, but for those of an open episode that the frames of later ones look back to."""
        buffer = self.buffer
        assert buffer is not None
        kept = [self._kept(lane) for lane in self.lanes] if self._keeps() else [(0, None)] * len(self.lanes)
        self._unrolled = 0
        self._renewed.clear()
        for lane, (context, rows) in zip(self.lanes, kept, strict=True):
            buffer.clear_lane(lane)
            self._context[lane] = context
            if rows is not None and len(rows[0]):
                buffer.push_rows([lane] * len(rows[0]), rows)
                self._unrolled = max(self._unrolled, len(rows[0]) - context)

    def _keeps(self) -> bool:
        """Whether rows stay when others are dropped."""
        return self.transforms.behind > 0

    def _kept(self, lane: int) -> tuple[int, list[Array]]:
        """The rows of a lane that stay, and how many of them were learned from."""
        assert self.buffer is not None
        rows = self.buffer.lane_rows(lane)
        n = self._to_take(rows)
        ends = np.flatnonzero(rows["terminated"][:n] | rows["truncated"][:n])
        context = min(self.transforms.behind, n - (int(ends[-1]) + 1 if len(ends) else 0))
        return context, [column[n - context :].copy() for column in rows.values()]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "store_policy": self.store_policy, "unrolled": self._unrolled, "learns": self._learns, "renewed": list(self._renewed),
                "dropped": self.dropped, "context": {str(lane): rows for lane, rows in self._context.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.store_policy = state.get("store_policy", self.store_policy)
        self._unrolled, self._learns, self.dropped = state["unrolled"], state["learns"], state["dropped"]
        self._renewed = list(state["renewed"])
        self._context = {int(lane): rows for lane, rows in state.get("context", {}).items()}


class EpisodicHelper(OnPolicyHelper):
    """Learns from whole episodes: whenever `episodes` of them have ended, or when an environment has `max_steps` rows waiting.

    Of a vector environment, rows of episodes that are still open wait for the next time.

    Args:
        episodes: Episodes of this agent, all its environments together, per training request.
        max_steps: Rows that one environment can hold; a longer wait is cut there and bootstrapped.
    """

    _nothing = "no episode has ended since the last learning"

    def __init__(self, *, episodes: int = 1, max_steps: int = 1000, **options: Any) -> None:
        super().__init__(unroll=max_steps, **options)
        if episodes < 1:
            raise ValueError(f"{type(self).__name__}: episodes is {episodes}; expected at least 1")
        self.episodes = episodes
        self._ended = 0

    def _after_store(self, rows: int, ended: int) -> None:
        self._ended += ended
        super()._after_store(rows, ended)
        if self._ended >= self.episodes and not self.collecting:
            self._learn()

    def _keeps(self) -> bool:
        return True  # those of open episodes

    def _to_take(self, rows: Mapping[str, Array]) -> int:
        n = len(rows["rew"])
        if self._unrolled >= self.unroll:
            return n
        ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
        return int(ends[-1]) + 1 if len(ends) else 0

    def _forget(self) -> None:
        super()._forget()
        self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._ended = state["ended"]


class OfflineHelper(OffPolicyHelper):
    """Learns from a buffer that was filled elsewhere; stores nothing.

    Args:
        data: The buffer. Its columns must have the names, shapes and dtypes of the model's spaces; what it lacks beside
            observations and actions, the algorithm must not need; what it has more does no harm.
        batch_size: Rows of one training request.
    """

    def __init__(self, data: ReplayBuffer, *, batch_size: int = 64, **options: Any) -> None:
        if len(data) < batch_size:
            raise ValueError(f"OfflineHelper: batch_size is {batch_size}, the data has {len(data)} rows; lower batch_size or give more data")
        super().__init__(size=len(data), batch_size=batch_size, **options)
        self.data = data

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return self.data

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Checks the columns that are there."""
        for spec in specs:
            column = buffer.columns.get(spec.name)
            if column is None and spec.name.split(".")[0] in ("obs", "act"):
                raise spec.error("no such column", f"the data has {', '.join(buffer.columns) or 'no rows'}; record the field", True)
            if column is not None and (buffer.read_shape(spec.name) != spec.shape or column.dtype != spec.dtype):
                raise spec.error(f"{('N', *buffer.read_shape(spec.name))} {column.dtype}", "convert the data, or build the model for its spaces", True)

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Offline data does not grow."""

    def interrupt(self, rows: Array | None = None) -> None:
        """Offline data does not change."""


def _joined(tickets: Sequence[Ticket]) -> dict[str, Array]:
    """The replies to one request that may have been split."""
    parts = [{name: v[t.start : t.start + t.rows] for name, v in t.out.items()} for t in tickets]
    return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


class ActionMap(Protocol):
    """From a policy's actions [N, ...] to the environment's."""

    def __call__(self, act: Array) -> Array: ...

    def inverse(self, act: Array) -> Array:
        """From the environment's actions to the policy's; up to clipping."""


def action_map(space: Any) -> ActionMap | None:
    """What an environment's action space makes of a policy's actions; None: they are the same.

    A Box with finite bounds: clip to [−1, 1], then scale to the bounds. With some infinite bounds: clip to those there are.
    Discrete and MultiDiscrete that do not start at 0: shift. Several choices: into the shape and dtype of the space.
    """
    if isinstance(space, gym.spaces.Discrete):
        return _Choices(space, int(space.start)) if space.start else None
    if isinstance(space, gym.spaces.MultiDiscrete):
        plain = len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64
        return None if plain else _Choices(space, space.start)
    if isinstance(space, gym.spaces.MultiBinary):
        return _Choices(space, 0)
    if isinstance(space, gym.spaces.Box):
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            return _Scale(space)
        if np.isfinite(space.low).any() or np.isfinite(space.high).any() or space.dtype.kind != "f":
            return _Clip(space)
    return None


def _raw_spec(space: Any, spec: Spec) -> Spec:
    """What is stored of an action: the policy's. Continuous ones are real numbers also where the environment rounds them, and
    several choices stand side by side, whatever their shape in the space."""
    if isinstance(space, gym.spaces.Box):
        return Spec(spec.name, spec.shape, spec.dtype if spec.dtype.kind == "f" else np.dtype(np.float32))
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return Spec(spec.name, (int(np.prod(spec.shape)),), np.dtype(np.int64))
    return Spec(spec.name, spec.shape, spec.dtype)  # without bounds, which are the environment's, perhaps from another number on


class _Choices:
    """Choices from 0, side by side ↔ the space's own numbers and shape."""

    def __init__(self, space: Any, start: Any) -> None:
        self.shape, self.dtype, self.start = space.shape, space.dtype, np.asarray(start)

    def __call__(self, act: Array) -> Array:
        return np.asarray(act.reshape(len(act), *self.shape) + self.start, self.dtype)

    def inverse(self, act: Array) -> Array:
        leading = act.shape[: act.ndim - len(self.shape)]
        size = (int(np.prod(self.shape)),) if self.shape else ()
        return np.asarray((act - self.start).reshape(*leading, *size), np.int64)


class _Clip:
    def __init__(self, space: Any) -> None:
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.raw = np.dtype(self.dtype if self.dtype.kind == "f" else np.float32)

    def __call__(self, act: Array) -> Array:
        return self._fit(act)

    def _fit(self, act: Array) -> Array:
        """Rounded to the space's dtype and inside its bounds, which rounding may have passed."""
        return np.clip(np.rint(act) if self.dtype.kind != "f" else act, self.low, self.high).astype(self.dtype)

    def inverse(self, act: Array) -> Array:
        return np.asarray(act, self.raw)


class _Scale(_Clip):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        # In the raw dtype: the width of an integer space may not fit its own (255 − 0 in int8 terms), nor that of a float32 one.
        self.middle = (np.asarray(space.low, np.float64) / 2 + np.asarray(space.high, np.float64) / 2).astype(self.raw)
        self.half = (np.asarray(space.high, np.float64) / 2 - np.asarray(space.low, np.float64) / 2).astype(self.raw)

    def __call__(self, act: Array) -> Array:
        return self._fit(self.middle + act * self.half)

    def inverse(self, act: Array) -> Array:
        return np.asarray((act - self.middle) / np.where(self.half == 0, 1, self.half), self.raw)


class Helpers(dict[str, AgentHelper]):
    """An agent's helpers by task name; an unknown name is answered with the nearest known one."""

    def __init__(self, agent: str, items: Iterable[tuple[str, AgentHelper]] = ()) -> None:
        super().__init__(items)
        self._agent = agent

    def __missing__(self, name: str) -> AgentHelper:
        raise KeyError(f"{self._agent}: " + unknown("task", name, self))

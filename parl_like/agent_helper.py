"""AgentHelper and its schedules: what an agent uses of one task, what it remembers, and when it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parl_like.batch import Batch
from parl_like.computation_task import BatchRule
from parl_like.data.archive import rng_state, set_rng_state
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.errors import NotEnoughRows
from parl_like.explorer import Explorer
from parl_like.spec import Array, Spec, leaves

if TYPE_CHECKING:
    from parl_like.agent import Agent
    from parl_like.communicator import Communicator, Ticket

NOISE_BLOCK = 64
"""Rows of noise drawn at a time."""


class AgentHelper:
    """One agent's access to one task. This base class predicts and never learns; the schedules below say when to learn.

    Args:
        explorer: How predictions become actions; None: the algorithm's default.
        store_policy: Extra outputs of the explorer to store with each row (`log_prob`); needed when rows are learned from after
            the parameters have changed.

    Attributes:
        name: The task's name.
        buffer: Raw rows, one lane per agent or environment, shared by all helpers of the task in this process; None if nothing is kept.
        steps: Rows stored by this helper: environment steps of its agent.
        collecting: True while `Robot.collect` runs: rows are stored, the schedule is suspended.
        mode: 'collect' or 'test'. In test mode actions are greedy and nothing is stored.
    """

    learns = False

    def __init__(self, *, explorer: Explorer | None = None, store_policy: bool = False) -> None:
        self.explorer = explorer
        self.store_policy = store_policy
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
        self, name: str, agent: Agent, communicator: Communicator, lanes: range | None, buffer: ReplayBuffer | None,
        rng: np.random.Generator, mode: str, wait: bool,
    ) -> None:
        """Joins the helper to its agent and task; called once, by the robot.

        Args:
            lanes: The agent's lanes in the buffer; None for an agent with a single environment in lane `agent.index`.
            wait: Whether learning blocks the agent (sync) or not (async).
        """
        self.name, self.agent, self.comm = name, agent, communicator
        self.mode, self.wait, self.rng, self.buffer = mode, wait, rng, buffer
        algorithm = communicator.wrapper.task.algorithm
        self.model = algorithm.model
        self.window = algorithm.window
        if self.explorer is None:
            self.explorer = algorithm.explorer()
        if self.store_policy and self.explorer is not None:
            self.explorer.log_prob = True  # type: ignore[attr-defined]
        if self.explorer is not None:
            communicator.wrapper.predictions.add_explorer(self.explorer, agent)
        queue = communicator.wrapper.predictions
        if queue.to_env is None:
            queue.to_env = action_map(self.model.act_space)
        self._unmapped = queue.to_env is None
        self.lanes = lanes
        self.lane = agent.index if lanes is None else lanes.start
        self._width = 1 if lanes is None else len(lanes)
        inputs = self.model.inputs()
        self._obs_names = [n for n in inputs if n == "obs" or n.startswith("obs.")]
        self._state_specs = {n: s for n, s in inputs.items() if n.startswith("state")}
        self._plain = self._obs_names == ["obs"]
        self._noisy = self.explorer is not None and self.explorer.noise is not None
        self._exploring = self._noisy and mode != "test"
        self._noise: list[Any] = []
        self._noise_at = 0
        self._noise_rng: dict[str, Any] = rng_state(rng)
        self._acted = 0
        self._last: tuple[Any, Ticket | None, int] = (None, None, 0)
        self._pending: Ticket | None = None
        self._stored_state: tuple[Any, ...] = ()
        self._reset_state()
        if buffer is not None:
            specs = [s for n, s in inputs.items() if not n.startswith("state")]
            specs += list(self.model.act_specs.values())
            specs += [Spec("rew", (), np.dtype(np.float64)), Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool))]
            specs += [Spec("obs_next" + n[3:], s.shape, s.dtype) for n, s in inputs.items() if n in self._obs_names]
            specs += list(self._state_specs.values())
            if self.store_policy:
                specs.append(Spec("policy.log_prob", (), np.dtype(np.float32)))
            buffer.allocate([s.owned_by(f"task {name!r}") for s in specs])

    def pre_episode(self, agent: Agent) -> None:
        """Stage PRE_EPISODE: recurrent memory starts from zero."""
        if self._state_specs:
            self._reset_state()

    def interrupt(self) -> None:
        """The open episode ends here without an end of its own: nothing may bootstrap or look across the seam."""
        if self.buffer is not None:
            for lane in range(self.lane, self.lane + self._width):
                self.buffer.truncate_open(lane)

    def _reset_state(self, rows: Array | None = None) -> None:
        if self.lanes is None:
            self._state = tuple(np.zeros(s.shape, s.dtype) for s in self._state_specs.values())
        elif rows is None:
            self._state = tuple(s.zeros(self._width) for s in self._state_specs.values())
        else:
            for part in self._state:
                part[rows] = 0

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
        values = (obs,) if self._plain else self._flatten(obs, self._obs_names)
        if self._state_specs:
            self._stored_state = self._state
            values += self._state
        if self.lanes is not None:
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
            self._state = tuple(ticket.out[name][row] for name in self._state_specs)
        if ticket.acts is None:
            return Batch.nest({name: value[row] for name, value in ticket.out.items()})
        act = ticket.acts[row]
        self._last = (act, ticket.out, row)  # type: ignore[assignment]
        return act

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
        n = self._width
        if self._noisy:
            assert self.explorer is not None and self.explorer.noise is not None
            if self._exploring:
                noise = self.explorer.draw(self.rng, self._acted, n)
                self._acted += n
            else:
                noise = np.array([self.explorer.greedy()] * n, self.explorer.noise.dtype)
            values += (noise,)
        tickets = self.comm.predict_rows(values, n)
        parts = [{name: v[t.start : t.start + t.rows] for name, v in t.out.items()} for t in tickets]
        out = parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        if self._state_specs:
            self._state = tuple(np.array(out[name]) for name in self._state_specs)
        if tickets[0].acts is None:
            return Batch.nest(out)
        act = np.asarray([a for t in tickets for a in t.acts[t.start : t.start + t.rows]])
        self._last = (act, out, -1)  # type: ignore[assignment]
        return act

    def _flatten(self, value: Any, names: Sequence[str], root: str = "obs") -> tuple[Any, ...]:
        flat = dict(leaves(value, root))
        if flat.keys() != set(names):
            missing, extra = sorted(set(names) - flat.keys()), sorted(flat.keys() - set(names))
            raise ValueError(
                f"{self.agent}, task {self.name!r}: fields of the observation: expected {sorted(names)}; missing {missing}, "
                f"unexpected {extra}; give the keys of the model's observation space"
            )
        return tuple(flat[name] for name in names)

    def _raw_act(self, act: Any) -> Any:
        """The action in the policy's own units: what the explorer made, or the inverse of the map for an action from elsewhere."""
        last, out, row = self._last
        if act is last and out is not None:
            return out["act"][row] if row >= 0 else out["act"]  # type: ignore[index]
        inverse = getattr(self.comm.wrapper.predictions.to_env, "inverse", None)
        return act if inverse is None else inverse(np.asarray(act))

    # ------------------------------------------------------------------------------------------------------------- storing

    def store(
        self, obs: Any, act: Any, rew: Any, obs_next: Any, terminated: Any, truncated: Any, info: Mapping[str, Any] | None = None,
        mask: Array | None = None,
    ) -> None:
        """Stores one transition (n of them for a vector environment) and learns when the schedule says so.

        Args:
            obs, act, rew, obs_next, terminated, truncated: One step; `obs_next` is what the environment returned with `rew`,
                at an episode's end the true final observation.
            info: Not stored; here for the plain call with what `env.step` returned.
            mask: [n] bool, rows that are real transitions; None: all.
        """
        buffer = self.buffer
        if buffer is None or self.mode == "test":
            return
        if self._plain:
            head, tail = (obs,), (obs_next,)
        else:
            head, tail = self._flatten(obs, self._obs_names), self._flatten(obs_next, self._obs_names)
        raw = act if self._unmapped else self._raw_act(act)
        values = (*head, raw, rew, terminated, truncated, *tail, *self._stored_state)
        if self.store_policy:
            _, out, row = self._last
            log_prob = out["log_prob"]  # type: ignore[index]
            values += (log_prob[row] if row >= 0 else log_prob,)
        try:
            if self.lanes is None:
                buffer.push(self.lane, values)
                self.steps += 1
                ended = terminated or truncated
            else:
                ended = self._store_rows(buffer, values, mask)
        except ValueError as error:
            raise type(error)(f"{self.agent}: {error}") from None
        if not self.collecting:
            self._after_store(bool(ended))

    def _store_rows(self, buffer: ReplayBuffer, values: tuple[Any, ...], mask: Array | None) -> bool:
        lanes = np.arange(self.lane, self.lane + self._width)
        ends = np.logical_or(values[-len(self._stored_state) - len(self._obs_names) - 2 - self.store_policy],
                             values[-len(self._stored_state) - len(self._obs_names) - 1 - self.store_policy])
        if mask is not None and not mask.all():
            lanes, values = lanes[mask], tuple(np.asarray(v)[mask] for v in values)
        buffer.push_rows(lanes, values)
        self.steps += len(lanes)
        if self._state_specs:
            self._reset_state(np.asarray(ends) if mask is None else ends | ~mask)
        return bool(np.any(ends))

    def _after_store(self, ended: bool) -> None:
        """The schedule: called after each stored step."""

    # ------------------------------------------------------------------------------------------------------------ learning

    def learn(self) -> dict[str, Any] | None:
        """Sends one training request now, whatever the schedule.

        Returns:
            The training return (metrics, and arrays with one entry per row sent), or None when learning does not wait.

        Raises:
            NotEnoughRows: the buffer cannot fill the request.
        """
        raise NotEnoughRows(f"{self.agent}, task {self.name!r}: {type(self).__name__} keeps no rows; use OnPolicyHelper or OffPolicyHelper to learn")

    def _send(self, rows: Mapping[str, Array], done: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any] | None:
        """Sends `rows`; `done` gets the training return once it is there."""
        if self._pending is not None:  # at most one request of an agent and task is open
            self.comm.get(self._pending)
            self._pending = None
        ticket = self.comm.put_training(rows)
        if not self.wait:
            self._pending = ticket
            return None
        result = self.comm.get(ticket)
        if done is not None:
            done(result)
        return result  # type: ignore[no-any-return]

    # --------------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Counters, generator and the unused part of the drawn noise (as the generator's state before it and a position)."""
        return {"steps": self.steps, "acted": self._acted, "noise_at": self._noise_at, "noise_size": len(self._noise),
                "noise_rng": self._noise_rng, "rng": rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
        batch_size: Rows of one training request, which is one learning batch.
        learn_every: Environment steps of this agent between two requests; so many agents learn as often per step as one.
        updates: Requests sent each time.
        warmup: Rows in the buffer before the first request; at least `batch_size`.
    """

    learns = True

    def __init__(
        self, *, size: int = 100_000, batch_size: int = 64, learn_every: int = 4, updates: int = 1, warmup: int = 0,
        explorer: Explorer | None = None, store_policy: bool = False,
    ) -> None:
        super().__init__(explorer=explorer, store_policy=store_policy)
        for name, value in (("size", size), ("batch_size", batch_size), ("learn_every", learn_every), ("updates", updates)):
            if value < 1:
                raise ValueError(f"OffPolicyHelper: {name} is {value}; expected at least 1")
        if warmup > size or batch_size > size:
            raise ValueError(f"OffPolicyHelper: warmup ({warmup}) or batch_size ({batch_size}) is above size ({size}); learning could never begin")
        self.size, self.batch_size, self.learn_every, self.updates = size, batch_size, learn_every, updates
        self.warmup = max(warmup, batch_size)
        self._since = 0

    def training_rule(self) -> BatchRule:
        return BatchRule(max_rows=self.batch_size)

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return ReplayBuffer(self.size, n_lanes, rng)

    def _after_store(self, ended: bool) -> None:
        self._since += self._width
        while self._since >= self.learn_every:
            self._since -= self.learn_every
            assert self.buffer is not None
            if len(self.buffer) >= self.warmup:
                for _ in range(self.updates):
                    self.learn()

    def learn(self) -> dict[str, Any] | None:
        rows, _ = self.sample(self.batch_size)
        return self._send(rows)

    def sample(self, n: int) -> tuple[dict[str, Array], Array]:
        """`n` rows with what the algorithm's window asks for, flat field name → array, and their positions in the buffer."""
        buffer = self.buffer
        if buffer is None or len(buffer) < self.batch_size:
            have = 0 if buffer is None else len(buffer)
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: learning needs {self.batch_size} rows, the buffer has {have}; "
                                "store more steps first, or lower batch_size")
        indices = buffer.sample_indices(n, self.rng)
        columns = buffer.columns
        if self.window.n_step == 1:
            return {name: column[indices] for name, column in columns.items()}, indices
        ahead = buffer.n_step(indices, self.window.n_step)
        last = ahead["last_index"]
        late = ("obs_next", "terminated", "truncated")
        rows = {name: column[last if name.split(".")[0] in late else indices] for name, column in columns.items() if name != "rew"}
        return {**rows, "rew": ahead["rew"], "valid": ahead["valid"]}, indices

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._since = state["since"]


class OnPolicyHelper(AgentHelper):
    """Learns from the rows since the last time, once, and forgets them.

    Args:
        unroll: Steps of this agent (of each of its environments) between two training requests.
    """

    learns = True

    def __init__(self, *, unroll: int = 32, explorer: Explorer | None = None, store_policy: bool = False) -> None:
        super().__init__(explorer=explorer, store_policy=store_policy)
        if unroll < 1:
            raise ValueError(f"{type(self).__name__}: unroll is {unroll}; expected at least 1")
        self.unroll = unroll

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return ReplayBuffer(self.unroll * n_lanes, n_lanes, rng)

    def bind(self, *args: Any, **kwargs: Any) -> None:
        super().bind(*args, **kwargs)
        self._unrolled = 0

    def _after_store(self, ended: bool) -> None:
        self._unrolled += 1
        if self._unrolled == self.unroll:
            self.learn()

    def learn(self) -> dict[str, Any] | None:
        return self._send(self.take())

    def take(self) -> dict[str, Array]:
        """All rows since the last call, in time order per environment, with `last` marking every cut; the buffer forgets them."""
        buffer = self.buffer
        assert buffer is not None
        segments = [buffer.lane_rows(lane) for lane in range(self.lane, self.lane + self._width)]
        segments = [s for s in segments if len(s["rew"])]
        if not segments:
            raise NotEnoughRows(f"{self.agent}, task {self.name!r}: nothing was stored since the last learning; store at least one step first")
        for segment in segments:
            segment["last"] = segment["terminated"] | segment["truncated"]
            segment["last"][-1] = True
        # Copies: the lanes are overwritten while an asynchronous request waits.
        rows = {name: np.concatenate([s[name] for s in segments]) for name in segments[0]}
        for lane in range(self.lane, self.lane + self._width):
            buffer.clear_lane(lane)
        self._unrolled = 0
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "unrolled": self._unrolled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._unrolled = state["unrolled"]


class EpisodicHelper(OnPolicyHelper):
    """Learns from whole episodes: at the end of every `episodes`-th one, or when `max_steps` rows wait.

    Args:
        episodes: Episodes of this agent per training request.
        max_steps: Rows that one agent can hold; a longer wait is cut there and bootstrapped.
    """

    def __init__(self, *, episodes: int = 1, max_steps: int = 1000, explorer: Explorer | None = None, store_policy: bool = False) -> None:
        super().__init__(unroll=max_steps, explorer=explorer, store_policy=store_policy)
        if episodes < 1:
            raise ValueError(f"EpisodicHelper: episodes is {episodes}; expected at least 1")
        self.episodes = episodes
        self._ended = 0

    def _after_store(self, ended: bool) -> None:
        self._unrolled += 1
        self._ended += ended
        if self._ended >= self.episodes or self._unrolled == self.unroll:
            self.learn()

    def take(self) -> dict[str, Array]:
        self._ended = 0
        return super().take()


class OfflineHelper(OffPolicyHelper):
    """Learns from a buffer that was filled elsewhere; stores nothing.

    Args:
        data: The buffer, or anything `ReplayBuffer.update` takes.
        batch_size: Rows of one training request.
    """

    def __init__(self, data: ReplayBuffer, *, batch_size: int = 64, explorer: Explorer | None = None) -> None:
        super().__init__(size=max(len(data), 1), batch_size=batch_size, explorer=explorer)
        self.data = data

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        return self.data

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Offline data does not grow."""


def action_map(space: Any) -> Callable[[Array], Array] | None:
    """From a policy's action to the environment's: Box with finite bounds: clip to [−1, 1], then scale; else unchanged.

    Discrete spaces that do not start at 0 are shifted. The returned function has an attribute `inverse`.
    """
    import gymnasium as gym

    if isinstance(space, gym.spaces.Discrete) and space.start:
        return _Shift(int(space.start))
    if isinstance(space, gym.spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return _Scale(space)
    return None


class _Shift:
    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, act: Array) -> Array:
        return act + self.start

    def inverse(self, act: Array) -> Array:
        return act - self.start


class _Scale:
    def __init__(self, space: Any) -> None:
        self.low, self.half, self.dtype = space.low, (space.high - space.low) / 2, space.dtype

    def __call__(self, act: Array) -> Array:
        return (self.low + (np.clip(act, -1.0, 1.0) + 1.0) * self.half).astype(self.dtype)

    def inverse(self, act: Array) -> Array:
        return ((act - self.low) / self.half - 1.0).astype(self.dtype)


class Helpers(dict[str, AgentHelper]):
    """An agent's helpers by task name; an unknown name is answered with the nearest known one."""

    def __init__(self, agent: str, items: Iterable[tuple[str, AgentHelper]] = ()) -> None:
        super().__init__(items)
        self._agent = agent

    def __missing__(self, name: str) -> AgentHelper:
        from parl_like.errors import unknown

        raise KeyError(f"{self._agent}: " + unknown("task", name, self))

"""Types without code of all that folders hand to each other: task, agent, helper, queue, driver, environment and run.

A folder that lies below another's class names the port here; one that lies above names the class. `Acting…` and `Trained…` add
to a port what only the process of the real object knows; a stand-in in another process has the plain port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from parl_like.values.plain import State

if TYPE_CHECKING:
    import numpy as np
    import torch

    from parl_like.values.agent_orders import AgentSignal, Quota
    from parl_like.values.spec import Array, Spec

Mode = Literal["collect", "update", "test"]
"""Why a prediction is asked for: by a robot's own agents, by another task's update, or by an evaluation."""
UsersAgent: TypeAlias = Any
"""The agent of a method that users override. They declare `Agent`, a class of their own, or `AgentPort`, and mypy holds their
code to that; a parameter may not be narrower than that of the method that it overrides, so the latter says nothing. Each other
type would refuse users' code: `docs/decisions/036-types-of-overridden-methods.md`."""
UsersRobot: TypeAlias = Any
"""The robot of such a method: `Robot`, or `RunPort`."""

Learned: TypeAlias = Mapping[str, Any]
"""The named values that `learn` of an algorithm gives back: numbers, and rows as arrays or tensors."""

AgentIn = TypeVar("AgentIn", contravariant=True)
"""An agent that a driver runs: `parl_like.agents.agent.Agent`."""
QueueIn = TypeVar("QueueIn", contravariant=True)
"""A queue of requests: `parl_like.tasks.queues.RequestQueue`."""
HelperKey: TypeAlias = "str | tuple[str, str]"
"""The key of an agent's helper: the task's name, or (task, role) where the agent has roles of the task."""
RequestIn = TypeVar("RequestIn", contravariant=True)
Request = TypeVar("Request")
"""A request with its reply: `parl_like.tasks.tickets.Ticket`."""


class LearnerProgress(NamedTuple):
    """LearnerProgress of a learning agent.

    Attributes:
        steps: Since its own last update.
        due: Whether its schedule has an update due: rows are stored that it will send by itself.
    """

    steps: int
    due: bool


class AlgorithmPort(Protocol):
    """An algorithm, as helpers know it wherever it is; `model` is a `Model`, `window` a `Window`."""

    model: Any
    window: Any
    acts_with: tuple[str, ...]
    pays_in_order: bool

    def explorer(self) -> Any:
        """Return the explorer that helpers use by default; None: predictions are no actions."""


class TrainedAlgorithm(AlgorithmPort, Protocol):
    """An algorithm, as learning and a checkpoint know it; `losses` are of kind `Loss`, `networks` torch modules."""

    lr: Any
    max_grad_norm: float | None
    losses: Mapping[str, Any] | None
    mode: str
    updates: int
    transient: tuple[str, ...]
    remembers: tuple[str, ...]

    @property
    def rng(self) -> np.random.Generator: ...

    @property
    def torch_rng(self) -> torch.Generator: ...

    def networks(self) -> Mapping[str, torch.nn.Module]: ...

    def fixed_settings(self) -> Mapping[str, str]: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class RowLearner(Protocol):
    """A compiled twin of an algorithm for rows of numbers, see `Algorithm.row_learner`; `reports` names what it returns."""

    reports: str

    def act(self, obs: int, noise: float, /) -> int: ...

    def learn(self, obs: int, act: int, rew: float, obs_next: int, terminated: bool, next_act: int, /) -> float: ...


class TaskPort(Protocol):
    """A task, as helpers and queues know it wherever it is.

    Attributes:
        output_shapes: Output of `predict` → its shape for one row. policy_specs: The outputs that helpers store.
        version: How many optimiser steps have changed its parameters. learns: Updates given.
        row_slots: Which rows of what it remembers belong to which agent, `RowSlots`.
    """

    name: str
    helper: Callable[[], object] | None
    train: bool
    on_error: Literal["stop", "fail_batch"]
    serve: Literal["auto", "central", "replica"]
    bisect: bool
    sync_every: int
    output_shapes: dict[str, tuple[int, ...]]
    policy_specs: tuple[Spec, ...]
    version: int
    learns: int
    row_slots: Any

    @property
    def algorithm(self) -> AlgorithmPort: ...

    @property
    def window(self) -> Any:
        """Return the `Window` of the rows that its updates need."""


class AskedTask(TaskPort, Protocol):
    """A task, as its queues and the tasks that ask it know it."""

    def act(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> tuple[dict[str, Array], int]:
        """Return flat output name → [N, …], and the version of the parameters that gave them."""


class TrainedTask(TaskPort, Protocol):
    """A task, as a checkpoint and schedules know it: its optimisers, and the rates by which they were set."""

    rates: dict[str, float]

    @property
    def algorithm(self) -> TrainedAlgorithm: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer | None: ...

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]: ...

    def owner(self) -> str:
        """Return how messages name it."""

    def move_ends(self, key: str, ends: Sequence[int]) -> None:
        """Let the schedules of a span end there."""


class QueuePort(Protocol[Request]):
    """A queue, as a request and whoever waits for it know it: `counters` are `Counters`, `batches` RequestBatches."""

    abandoned: int
    server: Any

    @property
    def kind(self) -> str: ...

    @property
    def task(self) -> TaskPort: ...

    @property
    def counters(self) -> Any: ...

    @property
    def batches(self) -> Sequence[object]: ...

    def serve_outside(self, wake: Callable[[list[Request]], None]) -> None:
        """Serve the oldest batch, and wake its requests, for a caller that is no driver's loop."""


class WrapperPort(Protocol):
    """The two queues of a task."""

    @property
    def predictions(self) -> QueuePort[Any]: ...

    @property
    def trainings(self) -> QueuePort[Any]: ...


class DriverPort(Protocol[AgentIn, QueueIn, RequestIn]):
    """A driver, as agents and communicators know it; `parl_like.run.driver` says what each method does."""

    def waiter(self) -> object: ...

    def put(self, queue: QueueIn, ticket: RequestIn, values: object, wait: bool) -> None: ...

    def wait(self, ticket: RequestIn) -> None: ...

    def is_served(self, ticket: RequestIn) -> bool: ...

    def check_caller(self, agent: object) -> None: ...

    def park(self, agent: AgentIn) -> None: ...

    def rest(self, agent: AgentIn) -> None: ...

    def start_thread(self, agent: AgentIn, function: Callable[[], object]) -> None: ...

    def is_beside(self) -> bool: ...

    def move_ends(self, key: str, ends: Sequence[int]) -> None: ...


class EnvPort(Protocol):
    """An environment, as helpers and hooks know it wherever it is. Where it is in this process, it has
    every attribute of `EnvFace` and of the environment.

    Attributes:
        episode_return, episode_length: Of the running or just finished episode; the length counts actions.
        time_steps: The environment's own steps. env_index: Which of its environments this stage is about.
    """

    episode_return: Any
    episode_length: int
    time_steps: int
    env_index: int

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any: ...


class WaitingRowsPort(Protocol):
    """The part of a helper that acts, and knows what a row needs of its prediction, for rows that wait over a checkpoint."""

    def begin(self, lane: int) -> None:
        """Forget what was seen before, for an episode begins in this environment."""

    def waiting(self, act: object) -> dict[str, object]:
        """Return what a row with this action will need."""

    def check_waiting(self, kept: Any) -> None:
        """Raise ValueError for what is nothing that `waiting` gives."""

    def take_waiting(self, act: object, kept: Any) -> None:
        """Take back what `waiting` gave."""


class HelperPort(Protocol):
    """A helper, as environments, drivers and hooks know it.

    Attributes:
        where: Agent and task, for messages. title: Task and role, for checkpoints.
        buffer: A `ReplayBuffer`; None: it keeps no rows. transforms: `Transforms`.
        memory: Of a recurrent model and the explorer, before the next prediction.
        role: The agent's player whose helper it is; None: there is one helper of the task.
    """

    where: str
    name: str
    title: str
    steps: int
    store_info: Any
    buffer: Any
    transforms: Any
    rng: np.random.Generator
    lanes: range
    memory: tuple[Array, ...]

    @property
    def role(self) -> str | None: ...

    @property
    def acting(self) -> WaitingRowsPort: ...

    @property
    def learns(self) -> bool: ...

    def episode_seed(self) -> int | None:
        """Return the seed with which the next episode begins; None: this helper does not say."""

    def forgo_policy(self) -> None:
        """Send no log-probabilities from here on."""


class AgentPort(Protocol):
    """An agent, as hooks and the run know it wherever it is.

    Attributes:
        agent_pool: The agents that it belongs to. robot: Whose pool that is, as users know it.
        signal: What it shall do before its next step; None: go on. Of an agent in a worker it says nothing.
        quota: How many steps and episodes it still takes before it parks.
        needs: Task name → rows that it has claimed of it.
    """

    agent_pool: PoolPort
    robot: RunPort
    index: int
    first_env: int
    n_envs: int
    steps: int
    vector: bool
    learns: bool
    needs_seed: bool
    signal: AgentSignal | None
    quota: Quota
    needs: dict[str, int]

    def tell(self, signal: AgentSignal) -> None:
        """Give the agent a signal; a stronger one that it has already stays."""

    def go_on(self) -> None:
        """Take back the agent's signal."""

    @property
    def helpers(self) -> Mapping[HelperKey, HelperPort]: ...

    @property
    def env(self) -> EnvPort: ...


class ActingAgent(AgentPort, Protocol):
    """An agent of this process, as helpers, queues and environments know it; the attributes are those of `Agent`."""

    learned_at: int
    last_progress: LearnerProgress | None
    rng: np.random.Generator
    on_bad_value: Literal["raise", "drop", "replace"]
    faults: Any
    process_changes: set[str]
    claims: Any

    def obey(self) -> None:
        """End the running episode, or wait, as the signal says."""

    def count_progress(self) -> LearnerProgress: ...

    def progress(self) -> LearnerProgress: ...

    def before_episode(self) -> None: ...

    def cut(self, rows: Array | None = None) -> None: ...

    def count_bad(self, text: str) -> None: ...

    def caption(self) -> str: ...


class RunPort(Protocol):
    """A robot, as its agents, hooks and stop conditions know it; of an evaluation its pool, and in a worker process a proxy."""

    @property
    def env_steps(self) -> int:
        """Return how many actions all agents have taken so far."""

    @property
    def episodes(self) -> int: ...

    @property
    def episodes_cut(self) -> int:
        """Return how many episodes interruptions have cut off."""

    @property
    def recent_returns(self) -> Sequence[Any]: ...

    @property
    def players(self) -> tuple[str, ...]:
        """Return the names of the environments' players, in the order of returns; () where each has one."""

    @property
    def mode(self) -> str: ...

    @property
    def driver_name(self) -> str: ...

    @property
    def tasks(self) -> Mapping[str, TaskPort]: ...

    @property
    def wrappers(self) -> Mapping[str, WrapperPort]: ...

    @property
    def agents(self) -> Sequence[AgentPort]: ...

    def request_stop(self) -> None:
        """End the run: no agent takes another step."""


class StatisticsPort(Protocol):
    """Counts of what the agents of a pool have done, for those who add to them."""

    env_steps: int
    episodes_cut: int
    players: tuple[str, ...]

    def count_bad(self, text: str) -> None: ...

    def count_episode(self, env: int, episode_return: object, length: int, parts: object = ()) -> None: ...

    def count_rows(self, task: str, learned: int, dropped: int) -> None: ...


class PoolPort(RunPort, Protocol):
    """A pool of agents, as its agents, helpers and environments know it: of a robot, an evaluation or a worker process.

    Attributes:
        should_stop: Asked after every act with the robot; None: nothing ends this run.
        remote: Whether the tasks are in another process.
        warned: What of the process environments have changed, and a warning has said so. idlers: Who asks and never steps.
    """

    should_stop: Callable[[Any], bool] | None
    warned: set[str]
    idlers: list[Any]
    remote: bool

    @property
    def robot(self) -> RunPort: ...

    @property
    def statistics(self) -> StatisticsPort: ...

    @property
    def driver(self) -> DriverPort[Any, Any, Any]: ...

    @property
    def common_seed(self) -> Any:
        """Return what all pools of a robot have their seeds from."""

    @property
    def n_agents(self) -> int:
        """Return how many there are in all; of a worker those of all workers."""

    def in_turn(self, call: Callable[..., object]) -> Callable[..., Any]:
        """Return `call` as agents call it: one at a time, whatever their threads do."""

    def tell(self, text: str) -> None: ...


class SpannedRun(RunPort, Protocol):
    """A run whose schedules end with it; `span` is a `Span`, None where there are no such schedules."""

    span: Any

    @property
    def pool(self) -> PoolPort: ...

    @property
    def tasks(self) -> Mapping[str, TrainedTask]: ...

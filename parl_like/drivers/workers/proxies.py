"""Proxies of what is in another process: of a task and its algorithm, in a worker or beside a Ray actor; of an agent and its
environment, where the robot is."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.helpers import Helpers
from parl_like.interfaces import AgentPort, AlgorithmPort, EnvPort, HelperKey, TaskPort
from parl_like.run.agent_pool import AgentPool
from parl_like.tasks.acting_copies import ActingCopies
from parl_like.tasks.row_slots import RowSlots
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.values.agent_orders import AgentSignal, Quota
from parl_like.values.errors import WrongCaller
from parl_like.values.spec import Array

PLAIN = (bool, int, float, str, type(None))


def plain_of(algorithm: AlgorithmPort) -> dict[str, object]:
    """Its plain attributes, such as `gamma`."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, PLAIN)}


class AlgorithmProxy(AlgorithmPort):
    """A proxy of an algorithm that is elsewhere, with what helpers ask of it: window, explorer, plain attributes, the spaces and
    specs of its model.

    Args:
        elsewhere: For the error of whoever asks for more: where it is, what is known here, and whom to ask.
    """

    model: object
    window: object
    acts_with: tuple[str, ...]
    pays_in_order: bool

    def __init__(
        self, algorithm: AlgorithmPort,
        elsewhere: str = "the task is in the robot's process; a worker knows the spaces, the window, the explorer and plain "
                         "attributes of its algorithm. Ask the task (helper.predict, helper.ask), or use another driver",
    ) -> None:
        model = algorithm.model
        self.__dict__.update(plain_of(algorithm))
        of_model = SimpleNamespace(obs_space=model.obs_space, act_space=model.act_space, act_specs=dict(model.act_specs),
                                   inputs=dict(model.inputs()).copy, reward_state=model.reward_state,
                                   _kind=type(model).__name__)
        self.__dict__.update(window=algorithm.window, acts_with=algorithm.acts_with, model=of_model,
                             pays_in_order=algorithm.pays_in_order,
                             _explorer=algorithm.explorer(), _kind=type(algorithm).__name__, _elsewhere=elsewhere)

    def explorer(self) -> Any:
        return self._explorer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self.__dict__.get('_kind')}.{name}: {self.__dict__.get('_elsewhere')}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._kind}.{name} cannot be assigned here: {self._elsewhere}")


class Replica(ComputationTask):
    """A task in a worker: it predicts, and learns nowhere but in the robot's process."""

    def claim(self) -> None:
        """Own no parameters: the optimisers are in the robot's process."""


class TaskProxy(TaskPort):
    """A task without its networks, for a worker's helpers and queues."""

    def __init__(self, task: ComputationTask) -> None:
        self.name, self.helper, self.train, self.on_error = task.name, task.helper, task.train, task.on_error
        self.predict_rule, self.training_rule = task.predict_rule, task.training_rule
        self.output_shapes, self.policy_specs = dict(task.output_shapes), task.policy_specs
        self.version, self.learns = task.version, task.learns
        self._algorithm, self._reward_fields = AlgorithmProxy(task.algorithm), task.reward_fields
        self.serve, self.sync_every, self.bisect = task.serve, task.sync_every, task.bisect
        self.source = task.source if task.serve == "replica" else None
        self.row_slots = RowSlots(n=0)  # those of the worker's agents, among all that the task has

    @property
    def algorithm(self) -> AlgorithmProxy:
        return self._algorithm

    @property
    def window(self) -> Any:
        window: Any = self._algorithm.window
        return window.reading(self._reward_fields)

    def act(self, inputs: Mapping[str, Array], mode: Mode) -> tuple[dict[str, Array], int]:
        """Refuse; what an agent asks in a run is sent to the robot's process instead.

        Raises:
            WrongCaller: always.
        """
        raise WrongCaller(f"task {self.name!r} predicts in the robot's process, which answers an agent in its run alone; from a "
                          "worker's environment ask it in reset and step, or serve it by replicas (serve='replica')")

    def make(self, seed: np.random.SeedSequence) -> Any:
        """Return what the worker's wrappers serve or send for: this proxy; of a replica a task with networks of its own, which
        get their parameters later."""
        if self.source is None:
            return self
        task = Replica(self.source, self.helper, predict_rule=self.predict_rule, training_rule=self.training_rule,
                       on_error=self.on_error, train=self.train, serve="replica", sync_every=self.sync_every, bisect=self.bisect)
        task.name, task.learns, task.reward_fields = self.name, self.learns, self._reward_fields
        task.build(seed)
        task.acting = ActingCopies(task.algorithm, self.version)
        return task


class Elsewhere(Helpers):
    """The helpers of an agent in a worker process: none are here."""

    def __missing__(self, key: HelperKey) -> Any:
        raise WrongCaller(f"{self._agent}: its helpers are in a worker process, where its own code can ask them and nobody else")


class RemoteAgent(AgentPort):
    """An agent of a worker; `steps` as of the last stop or checkpoint.

    Args:
        like: An agent that was made where the robot is.
        observe: Called with the robot's hooks.
    """

    signal = None

    def __init__(self, pool: AgentPool, index: int, like: Agent, observe: object) -> None:
        self.agent_pool, self.robot, self.index = pool, pool.robot, index
        self._label = f"{pool.options.label} {index}"
        self.n_envs, self.vector, self.learns, self.needs = like.n_envs, like.vector, like.learns, like.needs
        self.first_env = index * like.n_envs  # as its worker counts (`WorkerAgentMaker.first_env`)
        self._helpers = Elsewhere(self._label)
        self.steps = 0
        self._env: Any = None if like.env is None else RemoteEnv(self._label, observe)
        self.needs_seed = True
        self.quota = Quota()

    def __str__(self) -> str:
        return self._label

    def tell(self, signal: AgentSignal) -> None:
        """Its worker tells it."""

    def go_on(self) -> None:
        """Its worker lets it go on."""

    @property
    def helpers(self) -> Elsewhere:
        return self._helpers

    @property
    def env(self) -> Any:
        return self._env

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self.__dict__.get('_label', 'an agent')} is in a worker process; here it has index, "
                             "steps and, in hooks, its environment's last episode")


class RemoteEnv(EnvPort):
    """A proxy of an environment that is in a worker, with what hooks may ask of it: the episode that has just ended there."""

    def __init__(self, agent: str, observe: object) -> None:
        self._agent, self.observe = agent, observe
        self.episode_return: object = 0.0
        self.episode_length = self.time_steps = self.env_index = 0

    def connect_hooks(self, hooks: object) -> None:
        """No hook hears how episodes begin in a worker."""

    def put_back(self, held: None) -> None:
        """The worker lets go of what it holds."""

    def close(self) -> None:
        """The worker closes it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"env.{name}: {self._agent}'s environment is in a worker process; here it has episode_return, "
                             "episode_length and env_index. A stop condition looks at environments there: "
                             "StopWhenAgent(lambda agent: …)")

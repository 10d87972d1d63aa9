"""What mypy says of users' code that is written against the library, in strict mode."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parent.parent

ACCEPTED = '''
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from parl_like import Agent, AgentHelper, Algorithm, Batch, Hook, Robot, StopCondition
from parl_like.data.transforms import Transform
from parl_like.environment.face import EnvFace
from parl_like.environment.hooks import EveryNSteps
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.interfaces import AgentPort, RunPort
from parl_like.learning.explorers import Explorer
from parl_like.run.lifecycle import Lifecycle
from parl_like.tasks.task import ComputationTask
from typing_extensions import assert_type


class Colourful(Agent):
    colour = "red"

    def run_one_episode(self) -> None:
        assert_type(self.env, EnvFace)
        obs, info = self.env.reset()
        total, done = 0.0, bool(info.get("over"))
        while not done and obs[0] < 3:
            obs, rew, terminated, truncated, info = self.env.step(self.helpers["RL"].predict(obs))
            total, done = total + rew, terminated or truncated
        print(self.robot.env_steps, self.env.unwrapped)


class WithClasses(Hook):
    def pre_experiment(self, robot: Robot) -> None:
        print(robot.buffers)

    def post_act(self, agent: Colourful) -> None:
        print(agent.colour)

    def post_episode(self, agent: Agent, interrupted: bool) -> None:
        print(agent.steps, interrupted)


class WithPorts(Hook):
    def pre_experiment(self, robot: RunPort) -> None:
        print(robot.env_steps)

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        print(agent.env.episode_return)


class Full(StopCondition):
    def __call__(self, robot: Robot) -> bool:
        return any(len(buffer) > 100 for buffer in robot.buffers.values())


class Helper(AgentHelper):
    def pre_episode(self, agent: Agent) -> None:
        super().pre_episode(agent)

    def predict(self, obs: np.ndarray) -> int:
        return int(super().predict(obs))

    def store(self, obs: np.ndarray, act: int, rew: float, obs_next: np.ndarray, terminated: bool, truncated: bool,
              info: Mapping[str, Any] | None = None, mask: np.ndarray | None = None,
              extra: Mapping[str, Any] | None = None) -> None:
        super().store(obs, act, 2 * rew, obs_next, terminated, truncated, info, mask, extra)


class Averaging(Algorithm):
    def predict(self, inputs: Batch) -> dict[str, torch.Tensor]:
        return {"q": self.model.q(inputs.obs)}

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"loss": (self.model.q(batch.obs) - batch.rew).mean()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": 0.5, "counts": [1, 2], "where": {"x": np.zeros(3), "w": torch.ones(2)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({"mean": float(state["mean"])})


def rows(batch: Batch) -> Batch:
    batch.cat_({"obs": np.zeros((1, 2))})
    batch[0] = {"obs": [1.0, 2.0]}
    some = [batch[1:], batch[-1], batch[[0, 1]], batch[np.array([True])], batch[torch.tensor([1])], batch[:, 0], batch[...]]
    return Batch.cat(some, pad=True).apply_values_transform(lambda value: value * 2 + len(batch["obs"]))


class Halved(Transform):
    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        return space


class Loud(Explorer):
    def act(self, out: Mapping[str, np.ndarray], noise: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"act": out["q"].argmax(-1)}


def play(robot: Robot) -> None:
    robot.run(Full() | StopAfterSteps(3), [WithClasses(), WithPorts(), EveryNSteps(10, print)])
    assert_type(robot.pool.lifecycle, Lifecycle)
    assert_type(robot.agents, list[Agent])
    assert_type(robot.tasks, dict[str, ComputationTask])
'''

THE_PATH = '''
from parl_like import Agent, AgentHelper, Algorithm, Batch, Communicator, ComputationTask, ReplayBuffer, Robot
from parl_like.agents.acting import Acting
from parl_like.agents.helpers import Helpers
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.helper_options import HelperOptions
from parl_like.agents.row_writer import RowWriter
from parl_like.agents.updates import UpdateSender
from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.environment.face import EnvFace
from parl_like.interfaces import ActingAgent, PoolPort, TrainedAlgorithm, TrainedTask
from parl_like.learning.optimizer_steps import Optimization
from parl_like.run.agent_pool import AgentPool
from parl_like.run.driver import Driver
from parl_like.run.lifecycle import Lifecycle
from parl_like.run.port import RobotPort
from parl_like.run.run_loop import RunLoop
from parl_like.tasks.algorithm_runner import AlgorithmRunner
from parl_like.tasks.prediction_queue import PredictionQueue
from parl_like.tasks.queues import RequestQueue
from parl_like.tasks.tickets import Ticket
from parl_like.tasks.training_queue import TrainingQueue
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.agent_orders import AgentSignal
from typing_extensions import assert_type


def ask(helper: AgentHelper, communicator: Communicator, driver: CooperativeDriver, wrapper: ComputationWrapper) -> None:
    assert_type(helper.acting, Acting)
    assert_type(helper.acting.comm, Communicator)
    assert_type(helper.sender, UpdateSender)
    assert_type(helper.sender.context.comm, Communicator)
    assert_type(communicator.predict((1,)), Ticket)
    assert_type(communicator.put_training({}), Ticket)
    assert_type(communicator.wrapper, ComputationWrapper)
    assert_type(wrapper.predictions, PredictionQueue)
    assert_type(wrapper.trainings, TrainingQueue)
    assert_type(driver.queues, list[RequestQueue])


def serve(queue: RequestQueue, task: ComputationTask, runner: AlgorithmRunner, steps: Optimization, seen: Batch) -> None:
    assert_type(queue.serve(), list[Ticket])
    assert_type(queue.task, ComputationTask)
    assert_type(task.algorithm, Algorithm)
    assert_type(task.learned.optimization, Optimization | None)
    assert_type(runner.algorithm, Algorithm)
    assert_type(steps.algorithm, Algorithm)
    assert_type(steps.update(seen)[1], bool)


def act(robot: Robot, port: RobotPort, loop: RunLoop, lifecycle: Lifecycle, driver: CooperativeDriver, agent: Agent) -> None:
    assert_type(robot.run(10), None)
    assert_type(robot.pool, AgentPool)
    assert_type(port.pool, AgentPool)
    assert_type(loop.run(None, []), None)
    assert_type(robot.pool.lifecycle, Lifecycle)
    assert_type(robot.pool.driver, Driver)
    assert_type(lifecycle.advance(), bool)
    assert_type(driver.iterate(), bool)
    assert_type(driver.agents, list[Agent])
    assert_type(agent.run(), None)
    assert_type(agent.run_one_episode(), None)
    assert_type(agent.agent_pool, PoolPort)
    assert_type(agent.env, EnvFace)
    assert_type(agent.helpers, Helpers)
    assert_type(agent.helpers["RL"], AgentHelper)
    assert_type(agent.signal, AgentSignal | None)


def store(helper: AgentHelper, writer: RowWriter) -> None:
    assert_type(helper.options, HelperOptions)
    assert_type(helper.context, HelperContext)
    assert_type(helper.context.agent, ActingAgent)
    assert_type(helper.writer, RowWriter)
    assert_type(helper.store([0.0], 1, 1.0, [0.0], False, False), None)
    assert_type(writer.store([0.0], 1, 1.0, [0.0], False, False, None, None, None), tuple[int, int])
    assert_type(writer.acting, Acting)
    assert_type(writer.context.buffer, ReplayBuffer | None)
    assert_type(writer.context.task, ComputationTask)


def asked_of_a_trained_task(task: TrainedTask) -> None:
    assert_type(task.algorithm, TrainedAlgorithm)
'''

REFUSED = '''
from parl_like import Agent, Hook, Robot


class Wrong(Hook):
    def post_episode(self, agent: Agent, interrupted: bool) -> None:
        print(agent.stepps)

    def pre_experiment(self, robot: Robot) -> None:
        robot.runn()


class Misses(Hook):
    def post_episode(self, agent: Agent) -> None: ...
'''


OTHER_TYPES = '''
from typing import Generic, Never, Protocol

from typing_extensions import TypeVar


class Port(Protocol):
    steps: int


class Agent:
    steps = 0
    colour = "red"


class Mine(Agent): ...


class WithPort:
    def post_act(self, agent: Port) -> None: ...


class DeclaresItsAgent(WithPort):
    def post_act(self, agent: Agent) -> None: ...


class WithNever:
    def post_act(self, agent: Never) -> None: ...


class CallsTheMethodAbove(WithNever):
    def post_act(self, agent: Mine) -> None:
        super().post_act(agent)


Kind = TypeVar("Kind", contravariant=True, default=Agent)


class WithDefault(Generic[Kind]):
    def post_act(self, agent: Kind) -> None: ...


class DeclaresMine(WithDefault):
    def post_act(self, agent: Mine) -> None: ...


class SaysWhose(WithDefault[Mine]):
    def post_act(self, agent: Mine) -> None: ...


hooks: list[WithDefault] = [SaysWhose()]
'''


CODES = {"accepted": ACCEPTED, "the_path": THE_PATH, "refused": REFUSED, "other_types": OTHER_TYPES}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Name → what mypy says of that code, all in one run, since it reads the library for seconds; its own types come from the
    cache of `make check`, where there is one."""
    folder = tmp_path_factory.mktemp("users")
    files = [folder / f"users_{name}.py" for name in CODES]
    for file, code in zip(files, CODES.values(), strict=True):
        file.write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # 2: it could not begin
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert all(any(f"users_{name}.py:" in line for name in CODES) for line in lines), lines
    return {name: [line for line in lines if f"users_{name}.py:" in line] for name in CODES}


def test_agents_and_robots_may_be_declared_as_classes_or_as_ports(said):
    assert said["accepted"] == []


def test_every_hop_from_a_robot_to_its_algorithm_has_a_class(said):
    assert said["the_path"] == []


def test_what_users_declare_is_held_against_their_code(said):
    said = said["refused"]
    assert [line.partition(": error: ")[2].partition("  [")[0].split(";")[0] for line in said] == [
        '"Agent" has no attribute "stepps"', '"Robot" has no attribute "runn"',
        'Signature of "post_episode" incompatible with supertype "parl_like.environment.hooks.Hook"'], said


def test_no_other_type_of_the_agent_takes_what_users_write(said):
    """Decision 036: the port refuses `Agent`, Never refuses super(), and a generic hook its own agent or a list."""
    assert [line.partition(": error: ")[2].partition("  [")[0] for line in said["other_types"]] == [
        'Argument 1 of "post_act" is incompatible with supertype "WithPort"; supertype defines the argument type as "Port"',
        'Argument 1 to "post_act" of "WithNever" has incompatible type "Mine"; expected "Never"',
        'Argument 1 of "post_act" is incompatible with supertype "WithDefault"; supertype defines the argument type as "Agent"',
        'List item 0 has incompatible type "SaysWhose"; expected "WithDefault[Agent]"']

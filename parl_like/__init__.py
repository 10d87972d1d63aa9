"""parl_like: reinforcement-learning robots made of computation tasks that many agents share.

Importing this package imports neither torch nor anything else of weight: a name is loaded when it is first used.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

if _find_spec("parl_like.data._rows") is None:
    raise ImportError("parl_like's compiled modules are missing here: run `pip install -e .` at the repository root (it needs a "
                      "C compiler)")

if TYPE_CHECKING:
    from parl_like import layers as layers
    from parl_like.agent import Agent as Agent
    from parl_like.agent_helper import AgentHelper as AgentHelper
    from parl_like.algorithm import Algorithm as Algorithm, Linear as Linear, Shared as Shared
    from parl_like.algorithm import Window as Window, create_algorithm_func as create_algorithm_func
    from parl_like.batch import Batch as Batch
    from parl_like.computation_task import BatchRule as BatchRule, ComputationTask as ComputationTask
    from parl_like.computation_wrapper import Communicator as Communicator, ComputationWrapper as ComputationWrapper
    from parl_like.data.experience import Experience as Experience
    from parl_like.data.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from parl_like.data.replay_buffer import ReplayBuffer as ReplayBuffer, VectorReplayBuffer as VectorReplayBuffer
    from parl_like.data.timestep import TimeStep as TimeStep
    from parl_like.envs.make import make_env as make_env
    from parl_like.lab.experiment import Experiment as Experiment, register as register
    from parl_like.lab.runner import load_run as load_run
    from parl_like.model import Model as Model
    from parl_like.robot import Robot as Robot
    from parl_like.schedules import EpisodicHelper as EpisodicHelper, OfflineHelper as OfflineHelper
    from parl_like.schedules import OffPolicyHelper as OffPolicyHelper, OnPolicyHelper as OnPolicyHelper
    from parl_like.spec import Spec as Spec
    from parl_like.stages import Hook as Hook, Stage as Stage, StopCondition as StopCondition
    from parl_like.vector_agent import VectorAgent as VectorAgent

__version__ = "0.1.0"

_HOMES = {
    "agent": ["Agent"], "agent_helper": ["AgentHelper"],
    "algorithm": ["Algorithm", "Linear", "Shared", "Window", "create_algorithm_func"], "batch": ["Batch"],
    "computation_task": ["BatchRule", "ComputationTask"], "computation_wrapper": ["Communicator", "ComputationWrapper"],
    "data.experience": ["Experience"], "data.prioritized": ["PrioritizedReplayBuffer"],
    "data.replay_buffer": ["ReplayBuffer", "VectorReplayBuffer"], "data.timestep": ["TimeStep"], "envs.make": ["make_env"],
    "lab.experiment": ["Experiment", "register"], "lab.runner": ["load_run"], "layers": ["layers"], "model": ["Model"],
    "robot": ["Robot"], "schedules": ["EpisodicHelper", "OfflineHelper", "OffPolicyHelper", "OnPolicyHelper"], "spec": ["Spec"],
    "stages": ["Hook", "Stage", "StopCondition"], "vector_agent": ["VectorAgent"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'parl_like' has no attribute {name!r}")
    module = _import_module(f"parl_like.{_HOME_OF[name]}")
    value = module if name == "layers" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

"""parl_like: reinforcement-learning robots made of computation tasks that many agents share.

Importing this package imports neither torch nor anything else of weight: a name is loaded when it is first used.
"""

import gc as _gc
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

if _find_spec("parl_like.data.buffers._rows") is None:
    raise ImportError("parl_like's compiled modules are missing here: run `pip install -e .` at the repository root (it needs a "
                      "C compiler)")

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent as Agent
    from parl_like.agents.episodic import EpisodicHelper as EpisodicHelper
    from parl_like.agents.helper import AgentHelper as AgentHelper
    from parl_like.agents.off_policy import OffPolicyHelper as OffPolicyHelper
    from parl_like.agents.offline import OfflineHelper as OfflineHelper
    from parl_like.agents.on_policy import OnPolicyHelper as OnPolicyHelper
    from parl_like.agents.vector_agent import VectorAgent as VectorAgent
    from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from parl_like.data.buffers.replay_buffer import ReplayBuffer as ReplayBuffer
    from parl_like.data.buffers.replay_buffer import VectorReplayBuffer as VectorReplayBuffer
    from parl_like.data.experience import Experience as Experience
    from parl_like.data.timestep import TimeStep as TimeStep
    from parl_like.environment.hooks import Hook as Hook
    from parl_like.environment.hooks import Stage as Stage
    from parl_like.environment.stop_conditions import StopCondition as StopCondition
    from parl_like.envs.make import make_env as make_env
    from parl_like.lab.experiment import Experiment as Experiment
    from parl_like.lab.experiment import register as register
    from parl_like.lab.policies.policy import Policy as Policy
    from parl_like.lab.probes.algorithm import probe_algorithm as probe_algorithm
    from parl_like.lab.probes.buffer import probe_buffer as probe_buffer
    from parl_like.lab.probes.env import probe_env as probe_env
    from parl_like.lab.runner import load_run as load_run
    from parl_like.learning.algorithm import Algorithm as Algorithm
    from parl_like.learning.algorithm import Window as Window
    from parl_like.learning.factory import Shared as Shared
    from parl_like.learning.factory import create_algorithm_func as create_algorithm_func
    from parl_like.learning import layers as layers
    from parl_like.learning.model import Model as Model
    from parl_like.learning.schedule import Linear as Linear
    from parl_like.run.robot import Robot as Robot
    from parl_like.tasks.batch_rule import BatchRule as BatchRule
    from parl_like.tasks.task import ComputationTask as ComputationTask
    from parl_like.tasks.wrapper import Communicator as Communicator
    from parl_like.tasks.wrapper import ComputationWrapper as ComputationWrapper
    from parl_like.values.batch import Batch as Batch
    from parl_like.values.spec import Spec as Spec

__version__ = "0.1.0"

_HOMES = {
    "agents.agent": ["Agent"], "agents.episodic": ["EpisodicHelper"], "agents.helper": ["AgentHelper"],
    "agents.off_policy": ["OffPolicyHelper"], "agents.offline": ["OfflineHelper"], "agents.on_policy": ["OnPolicyHelper"],
    "agents.vector_agent": ["VectorAgent"], "data.buffers.prioritized": ["PrioritizedReplayBuffer"],
    "data.buffers.replay_buffer": ["ReplayBuffer", "VectorReplayBuffer"], "data.experience": ["Experience"],
    "data.timestep": ["TimeStep"], "environment.hooks": ["Hook", "Stage"], "environment.stop_conditions": ["StopCondition"],
    "envs.make": ["make_env"], "lab.experiment": ["Experiment", "register"], "lab.policies.policy": ["Policy"],
    "lab.runner": ["load_run"],
    "lab.probes.algorithm": ["probe_algorithm"], "lab.probes.buffer": ["probe_buffer"], "lab.probes.env": ["probe_env"],
    "learning.algorithm": ["Algorithm", "Window"], "learning.factory": ["Shared", "create_algorithm_func"],
    "learning.layers": ["layers"], "learning.model": ["Model"], "learning.schedule": ["Linear"], "run.robot": ["Robot"],
    "tasks.batch_rule": ["BatchRule"], "tasks.task": ["ComputationTask"],
    "tasks.wrapper": ["Communicator", "ComputationWrapper"], "values.batch": ["Batch"], "values.spec": ["Spec"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'parl_like' has no attribute {name!r}")
    collects = _gc.isenabled()
    _gc.disable()  # what is imported stays: to look through all objects of torch for garbage meanwhile takes a tenth of a second
    try:
        module = _import_module(f"parl_like.{_HOME_OF[name]}")
    finally:
        if collects:
            _gc.enable()
    value = module if name == "layers" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

"""A task that learns what the environment does, and a policy task that learns from what the first one imagines. `model=false` is
SAC alone, with one update for each step.

Both learn from the same steps, each from a buffer and at a pace of its own. In its updates the policy task asks the model task
where its actions would lead: dreams are made where they are learned from, by the newest policy and the newest model, and no agent
waits for one. So a step of the environment is worth many updates. Scores: docs/robots.md.
"""

from __future__ import annotations

from typing import Any

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.algorithms.mbpo import MBPO, EnsembleLearner
from parl_like.algorithms.sac import SAC
from parl_like.data.transforms import Transform
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.dynamics import EnsembleDynamics
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask


class Config(PartsConfig, frozen=True, kw_only=True):
    """Everything else are arguments of what the robot is built of: `MBPO.horizon`, `RL.OffPolicyHelper.updates` (updates for each
    step), `EnsembleDynamics.members`, ….

    Attributes:
        model: Whether there is the model task.
    """

    model: bool = True
    env: Env = Env(id="Pendulum-v1")


DEFAULTS = {"OffPolicyHelper.batch_size": 256, "OffPolicyHelper.learn_every": 1, "MLPActorQ.hidden": [64, 64], "MBPO.horizon": 5,
         "tasks.model.OffPolicyHelper.warmup": 256, "tasks.RL.OffPolicyHelper.warmup": 500}
UPDATES = {"tasks.RL.OffPolicyHelper.updates": 10}
"""Updates of the policy that imagines, per row."""


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: transforms of the two tasks differ.
    """
    parts = Parts(config.parts, DEFAULTS | (UPDATES if config.model else {}), config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    spaces, agent = probed(source)
    parts.act = spaces["act"]

    def task(name: str, model: type, algorithm: type, **defaults: Any) -> ComputationTask:
        """One that learns from random rows."""
        where = f"tasks.{name}"
        helper = parts.args(where, OffPolicyHelper, acts=config.total_steps / config.n_agents)
        told = parts.of(where, OffPolicyHelper)
        updates = config.total_steps * told["updates"] // (told["learn_every"] or 1)
        func = create_algorithm_func(model, {**spaces, **parts.args(where, model)},
                                     algorithm, parts.args(where, algorithm, updates=updates, lr=1e-3))
        return ComputationTask(func, made_anew(OffPolicyHelper, helper), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",), **defaults))

    if not config.model:
        return robot_with(config, source, {"RL": task("RL", MLPActorQ, SAC)}, agent, parts=parts)
    tasks = {"RL": task("RL", MLPActorQ, MBPO, asks=["model"]),
             "model": task("model", EnsembleDynamics, EnsembleLearner)}
    real, imagined = (transforms(parts, f"tasks.{name}") for name in tasks)
    if real != imagined:
        raise ConfigError(f"Config: transforms of RL are {real}, of model {imagined}; expected the same, for real and imagined "
                          "rows go together: set RL.OffPolicyHelper.transforms and model.OffPolicyHelper.transforms")
    return robot_with(config, source, tasks, agent, parts=parts)


def transforms(parts: Parts, where: str) -> dict[str, Any]:
    """Which transforms a task's helper has, and their settings."""
    head = f"robot.{where}."
    return {name.removeprefix(head): one.value for name, one in parts.settings.items() if name.startswith(head)
            and (issubclass(one.owner, Transform) or name.endswith(".transforms") and one.value)}

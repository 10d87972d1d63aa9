"""The second task of a robot that is curious: it rewards the first for what is new to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.agents.offline import OfflineHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.players import PlayersAgent
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.robots.arguments import arguments_of
from parl_like.robots.settings import Parts, named, optimiser_steps
from parl_like.robots.spaces import made_anew
from parl_like.tasks.task import ComputationTask

CURIOSITY = "curiosity"
"""The name of the task."""
MODELS = {"Counts": "Novel", "ICM": "ICMNet", "RND": "RNDNet"}
"""Algorithm of the task → its model."""


def rewarded(algorithm: type, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of an algorithm that learns from rewards of another task: of single steps."""
    own = {f"{algorithm.__name__}.n_step": 1} if "n_step" in arguments_of(algorithm) else {}
    return {key: 1 if key.endswith(".n_step") else value for key, value in defaults.items()} | own


def check_can_be_curious(agent: type[Agent], helper: type) -> None:
    """Raise ConfigError where the second task would never learn: where nobody acts, or several players do."""
    if issubclass(agent, PlayersAgent) or issubclass(helper, OfflineHelper):
        there = "an environment of several players" if issubclass(agent, PlayersAgent) else f"the helper {helper.__name__}"
        raise ConfigError("Config: key 'curiosity': the task learns from the steps of agents in an environment of one player, "
                          f"and there is {there}; leave it out, or write a Robot with both tasks")


def curiosity_task(name: str, parts: Parts, spaces: Mapping[str, Any], policy: Mapping[str, Any], *, lanes: int,
                   device: str) -> ComputationTask:
    """Return the task that learns from every row of the policy's, once: by unrolls of the policy's length, where that has one.

    Args:
        name: Of its algorithm.
        spaces: As the policy's model has them.
        policy: Arguments of the policy's helper.
        lanes: Environments of all agents.
    """
    where, algorithm, model = f"tasks.{CURIOSITY}", named("Algorithm", name), named("Model", MODELS[name])
    helper = {"unroll": policy.get("unroll", 32), "transforms": policy.get("transforms", ())}

    def updates(learner: Mapping[str, Any]) -> int:
        rows = lanes * int(helper["unroll"])
        return optimiser_steps(parts.span.steps / rows, rows, learner)

    func = create_algorithm_func(model, {**spaces, **parts.args(where, model)}, algorithm,
                                 parts.args(where, algorithm, updates=updates))
    return ComputationTask(func, made_anew(OnPolicyHelper, helper), device=device)

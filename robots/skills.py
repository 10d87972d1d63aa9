"""DIAYN: a policy that follows skills, and a task that pays it for being told apart by where it goes. Nothing else is paid.

The agent draws a skill for each episode, and shows it to both tasks beside the observation. Scores: docs/skills.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from parl_like.agents.agent import Agent
from parl_like.agents.helper import AgentHelper
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.algorithms.diayn import Discriminator
from parl_like.algorithms.sac import SAC
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.heads import mask_key
from parl_like.models.skills import SkillClassifier
from parl_like.robots.following import FollowingAgent
from parl_like.robots.settings import Parts, optimiser_steps
from parl_like.robots.spaces import Env, PartsConfig, Positive, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask

DEFAULTS = {"MLPActorQ.hidden": [64, 64]}


class Config(PartsConfig, frozen=True, kw_only=True):
    """Everything else are arguments of what the robot is built of: `SAC.alpha`, `Discriminator.epochs`, ….

    Attributes:
        skills: How many.
    """

    skills: Positive = 8
    env: Env = Env(id="Plane-v0")


class SkillAgent(FollowingAgent):
    """Follows one skill in each episode, drawn evenly; observations of its tasks are {obs, skill}.

    Attributes:
        skill: The one that is followed.
    """

    skill = 0

    def caption(self) -> str:
        return f"skill {self.skill}"

    def begin(self) -> None:
        first = next(iter(self.helpers.values()))
        self.skill = int(self.rng.integers(first.model.obs_space["skill"].n))

    def shown(self, obs: Any) -> dict[str, Any]:
        return {"obs": obs, "skill": self.skill}


def accuracy(robot: Robot, episodes: object) -> float:
    """Return how often the discriminator knows the skill of a row that it has not learned yet."""
    discriminator: Any = robot.tasks["discriminator"].algorithm  # or, in a Ray actor, what is known of it here
    return float(discriminator.accuracy)


def build(config: Config) -> Robot:
    """Return the robot of a configuration; its score is the discriminator's accuracy.

    Raises:
        ConfigError: the environment is one of several players or environments, or has masks of actions. TypeError: its actions
            are not for SAC.
    """
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    found, agent = probed(source)
    if agent is not Agent:
        raise ConfigError(f"Config: key 'env': {config.env.id} is no single environment of one player, in which skills act")
    if mask_key(found["obs"], found["act"]):
        raise ConfigError(f"Config: key 'env': {config.env.id} says which actions are legal, and skills do not keep to that")
    spaces: dict[str, Any] = {"obs": gym.spaces.Dict({"obs": found["obs"], "skill": gym.spaces.Discrete(config.skills)}),
                              "act": found["act"]}
    parts.act = found["act"]
    acts = config.total_steps / config.n_agents

    def task(name: str, model: type, algorithm: type, make: Callable[[], AgentHelper], *, updates: Any, rewards: Any = None,
             **defaults: Any) -> ComputationTask:
        where = f"tasks.{name}"
        func = create_algorithm_func(model, {**spaces, **parts.args(where, model)}, algorithm,
                                     parts.args(where, algorithm, acts=acts, updates=updates, **defaults))
        return ComputationTask(func, make, device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",), rewards=rewards))

    def n_updates(options: Any) -> Any:
        return config.total_steps * options["updates"] // (options["learn_every"] or 1)

    off = parts.args("tasks.RL", OffPolicyHelper, acts=acts, updates=n_updates, batch_size=128, learn_every=1, warmup=500,
                     random_steps=500)
    on = parts.args("tasks.discriminator", OnPolicyHelper, unroll=100)
    rows = config.n_agents * parts.of("tasks.discriminator", OnPolicyHelper)["unroll"]
    tasks = {
        "RL": task("RL", MLPActorQ, SAC, made_anew(OffPolicyHelper, off),
                   updates=n_updates(parts.of("tasks.RL", OffPolicyHelper)), lr=1e-3, alpha=0.1, learn_alpha=False,
                   rewards={"discriminator": 1.0, "env": 0.0}),
        "discriminator": task("discriminator", SkillClassifier, Discriminator, made_anew(OnPolicyHelper, on),
                              updates=lambda learner: optimiser_steps(config.total_steps / rows, rows, learner), lr=3e-3),
    }
    return robot_with(config, source, tasks, SkillAgent, parts=parts, score=accuracy)

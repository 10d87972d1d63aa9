"""A robot with one task that learns a policy on-policy (PPO or A2C), for discrete and continuous actions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from parl_like.algorithms.actor_critic import A2C, PPO
from parl_like.env_source import EnvSource
from parl_like.robot import Robot
from parl_like.robots.spaces import PolicyConfig, Positive


class Config(PolicyConfig, frozen=True, kw_only=True):
    """One learning batch has `n_agents` × `unroll` rows.

    Attributes:
        algorithm: `ppo` or `a2c`.
        normalize: Advantages to mean 0, standard deviation 1.
        epochs, minibatches, clip: Of PPO alone.
        The rest: see `parl_like.robots.spaces.PolicyConfig`.
    """

    algorithm: Literal["ppo", "a2c"] = "ppo"
    normalize: bool = True
    epochs: Positive = 4
    minibatches: Positive = 4
    clip: Annotated[float, Meta(gt=0, lt=1)] = 0.2


def build(config: Config, env: EnvSource = None) -> Robot:
    """The robot of a configuration; `env` in place of its id: a factory, or an environment for one agent."""
    iterations = config.total_steps // (config.n_agents * config.unroll)
    if config.algorithm == "a2c":
        return config.robot(env, A2C, iterations, {}, {}, "normalize")
    updates = iterations * config.epochs * config.minibatches
    return config.robot(env, PPO, updates, {}, {}, "normalize", "epochs", "minibatches", "clip")

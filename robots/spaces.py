"""What robots with one task share: the spaces of an environment, a network that fits them, the robot around it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from parl_like.agent import Agent
from parl_like.algorithm import Linear
from parl_like.computation_task import ComputationTask
from parl_like.env_source import EnvSource, is_made, make_one
from parl_like.lab.config import ConfigError, ExperimentConfig
from parl_like.robot import Robot
from parl_like.spec import specs_of
from parl_like.vector_agent import VectorAgent

SMALLEST_IMAGE = 4
"""Pixels of the shorter side from which on three axes are an image, and not a table."""


def spaces_of(env: EnvSource) -> dict[str, Any]:
    """`{"obs": space, "act": space}` of an environment, of a vector environment those of one in it.

    Raises:
        ConfigError: gymnasium does not know the id, or a package that it needs is missing.
    """
    return probed(env)[0]


def probed(source: EnvSource) -> tuple[dict[str, Any], type[Agent]]:
    """Spaces as `spaces_of`, and the kind of agent: one that drives a vector environment whole, or a plain one."""
    try:
        env = make_one(source)
    except (gym.error.Error, ImportError) as error:
        if not isinstance(source, str):
            raise
        raise ConfigError(f"Config: key 'env': {str(error).splitlines()[0]}") from None
    many = isinstance(env, VectorEnv)
    spaces = {"obs": env.single_observation_space if many else env.observation_space,
              "act": env.single_action_space if many else env.action_space}
    if not is_made(source) and hasattr(env, "close"):
        env.close()
    return spaces, VectorAgent if many else Agent


def network(spaces: dict[str, Any], flat: Callable[..., Any], conv: Callable[..., Any], hidden: tuple[int, ...],
            standard: tuple[int, ...]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The model for these spaces and its arguments: `conv` where the observation has an image, else `flat`.

    Args:
        hidden: Sizes of the hidden layers; where they are the `standard` ones of `flat`, the layers of `conv` are its own.
    """
    images = [spec for spec in specs_of(spaces["obs"], "obs").values() if len(spec.shape) == 3]
    if len(images) != 1 or sorted(images[0].shape)[1] < SMALLEST_IMAGE:
        return flat, {**spaces, "hidden": hidden}
    return conv, spaces if hidden == standard else {**spaces, "hidden": hidden}


def one_task_robot(config: ExperimentConfig, env: EnvSource, agent: type[Agent], task: ComputationTask) -> Robot:
    """The robot that a configuration says, with the task 'RL'."""
    return Robot(env, tasks={"RL": task}, agent=agent, n_agents=config.n_agents, driver=config.robot_driver(), seed=config.seed,
                 trace=config.trace)


def schedule(start: float, share: float, updates: int) -> Any:
    """`start` falling linearly to `start * (1 - share)` over `updates` optimiser steps; a number where `share` is 0."""
    return Linear(start, start * (1.0 - share), max(updates, 1)) if share else start

"""The spaces of an environment by name, for robots whose networks are built from a configuration."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from parl_like.lab.config import ConfigError


def spaces_of(env: str) -> dict[str, Any]:
    """`{"obs": space, "act": space}` of a registered environment.

    Raises:
        ConfigError: gymnasium does not know the id, or a package that it needs is missing.
    """
    try:
        probe = gym.make(env, disable_env_checker=True)
    except (gym.error.Error, ImportError) as error:
        raise ConfigError(f"Config: key 'env': {str(error).splitlines()[0]}") from None
    spaces = {"obs": probe.observation_space, "act": probe.action_space}
    probe.close()
    return spaces


def schedule(start: float, share: float, updates: int) -> Any:
    """`start` falling linearly to `start * (1 - share)` over `updates` optimiser steps; a number where `share` is 0."""
    from parl_like.algorithm import Linear

    return Linear(start, start * (1.0 - share), max(updates, 1)) if share else start

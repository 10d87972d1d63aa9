"""`Robot.of`: a robot with one task from the name of an algorithm and an environment; all else has a default."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium as gym

from parl_like.env_source import EnvSource, is_made
from parl_like.errors import unknown
from parl_like.lab import config as configs
from parl_like.lab.config import ConfigError
from parl_like.robot import Robot
from parl_like.robots.spaces import spaces_of

FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "DQN": ("dqn", {"n_agents": 8, "learn_every": 2, "target_period": 200, "total_steps": 50_000}),
    "PPO": ("actor_critic", {"algorithm": "ppo", "n_agents": 8, "unroll": 128, "epochs": 10, "minibatches": 16}),
    "A2C": ("actor_critic", {"algorithm": "a2c", "n_agents": 16, "unroll": 16, "lr": 1e-3, "entropy": 0.01, "normalize": False}),
    "IMPALA": ("impala", {"n_agents": 16}),
}
"""Algorithm → the robot that has it, and defaults for whoever gives none."""

RUN_OPTIONS = ("run_dir", "checkpoint_every", "keep_checkpoints", "metrics_every", "log_every_s", "eval_episodes",
               "torch_threads", "tensorboard")
"""Keys of a configuration that are about a run directory, of which there is none here."""


def build(algorithm: str | type, env: EnvSource, options: Mapping[str, Any]) -> Robot:
    """See `Robot.of`."""
    name = algorithm if isinstance(algorithm, str) else algorithm.__name__
    known = {family.lower(): family for family in FAMILIES}
    if name.lower() not in known:
        raise ValueError(f"Robot.of: {unknown('algorithm', name, FAMILIES)}; for another build its task: "
                         "Robot(env, tasks={...})")
    name = known[name.lower()]
    module_name, defaults = FAMILIES[name]
    module = import_module(f"parl_like.robots.{module_name}")
    if is_made(env):
        defaults = {**defaults, "n_agents": 1}
    for key in ("env", "algorithm", *RUN_OPTIONS):
        if key in options:
            raise ValueError(f"Robot.of: {key} is no option of a robot{'; give the environment itself' * (key == 'env')}")
    try:
        config = configs.resolve(module.Config, defaults, options, {"env": env} if isinstance(env, str) else {})
        space = spaces_of(env)["act"]
    except ConfigError as error:
        raise ValueError(f"Robot.of: {str(error).removeprefix('Config: ')}") from None
    if name == "DQN" and not isinstance(space, gym.spaces.Discrete):
        raise ValueError(f"Robot.of: DQN chooses one of several actions, this environment takes {space}; use PPO, A2C or IMPALA")
    return module.build(config, None if isinstance(env, str) else env)  # type: ignore[no-any-return]

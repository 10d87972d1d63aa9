"""Environments by their ids: every text of which gymnasium makes one comes through here."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, parse_env_id

from parl_like import names

PACKAGES = (
    (r"ALE/|\w+(NoFrameskip|Deterministic)-v[04]$", "ale_py", "atari"),
    (r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    (r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d)-v[45]$",
     "mujoco", "mujoco"),
    (r"(LunarLander|LunarLanderContinuous|BipedalWalker|BipedalWalkerHardcore|CarRacing)-v\d$", "Box2D", "box2d"),
)
"""What ids begin with, the package that registers or plays them, and the extra that installs it."""


def _bring(id: str) -> None:
    """Imports the package of an id, which registers it. Raises ImportError, with the extra, where it is not installed."""
    spec = gym.registry.get(id)
    if spec is not None and not str(spec.entry_point).startswith("gymnasium."):
        return  # its package is there, or it is the user's own
    for pattern, module, extra in PACKAGES:
        if re.match(pattern, id):
            if find_spec(module) is None:
                raise ImportError(f"environment {id!r} needs the package {module}: pip install 'parl_like[{extra}]'")
            if spec is None:
                import_module(module)


def registered(id: str) -> bool:
    """Whether gymnasium makes this id, a version or the newest one, of what is registered now, and imports nothing for it.

    Raises:
        gymnasium.error.Error: it is no id at all.
    """
    if ":" in id:  # gymnasium imports the module before it
        return False
    if id in gym.registry:
        return True
    space, name, version = parse_env_id(id)
    return version is None and find_highest_version(space, name) is not None


def known(id: str) -> str:
    """The id, if an environment may be made of it: where a rule is in force (`parl_like.names`), it was typed or is registered.

    Raises:
        ImportError: its package, one of `PACKAGES`, is not installed.
        gymnasium.error.Error: it is not registered, and may not be looked for. Else the refusal of the rule.
    """
    rule = names.rule()
    _bring(id)
    if rule is None or rule.typed(id) or registered(id):
        return id
    if ":" in id:
        raise rule.refusal(id)
    gym.spec(id)  # raises, with the nearest id
    return id


def make(id: str, **options: Any) -> Any:
    """An environment of an id, by `gymnasium.make` with these options."""
    return gym.make(known(id), **options)

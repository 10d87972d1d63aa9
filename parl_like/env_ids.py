"""Environments by their ids: every text of which gymnasium makes one comes through here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, parse_env_id

from parl_like import names


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
        gymnasium.error.Error: it is not registered, and may not be looked for. Else the refusal of the rule.
    """
    rule = names.rule()
    if rule is None or rule.typed(id) or registered(id):
        return id
    if ":" in id:
        raise rule.refusal(id)
    gym.spec(id)  # raises, with the nearest id
    return id


def make(id: str, **options: Any) -> Any:
    """An environment of an id, by `gymnasium.make` with these options."""
    return gym.make(known(id), **options)

"""MinAtar: five Atari games on 10 × 10 cells (Young and Tian 2019), with the whole state to clone.

The games are those of the package `minatar`, read without its display, so that nothing that it draws with is needed:
`pip install --no-deps minatar`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.errors import unknown

MISSING = "MinAtar needs the package minatar; its display is not needed: pip install --no-deps minatar"


class MinAtar(gym.Env[Any, Any]):
    """One game.

    Observation [10, 10, C] uint8, 0 or 1: a channel for each kind of thing. Actions are those that the game knows, in the order
    no-op, left, up, right, down, fire. Episodes begin without a last action that could stick, unlike those of the package.

    Args:
        game: "asterix", "breakout", "freeway", "seaquest" or "space_invaders".
        sticky: Probability that the game repeats the last action in the place of the one given.
        ramping: Whether a game becomes harder in the course of an episode.
        full_actions: All six actions, not only those that the game knows.

    Raises:
        ImportError: the package is not installed. ValueError: unknown game, or a probability that is none.
    """

    def __init__(self, game: str = "breakout", sticky: float = 0.1, ramping: bool = True, *,
                 full_actions: bool = False) -> None:
        if not 0.0 <= sticky <= 1.0:
            raise ValueError(f"MinAtar: sticky is {sticky}; expected a probability")
        self.game, self.sticky, self.last_action, self.over = _game(game, ramping), sticky, 0, True
        known = range(6) if full_actions else self.game.minimal_action_set()
        self.actions = [int(action) for action in known]
        self.observation_space = gym.spaces.Box(0, 1, tuple(self.game.state_shape()), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self.actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.random = _Draws(self.np_random)
        self.game.reset()
        self.last_action, self.over = 0, False
        return self.game.state().astype(np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays an action for one frame.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is none of the game's.
        """
        if self.over:
            raise gym.error.ResetNeeded("MinAtar: reset before the first step, and after the last")
        action = operator.index(action)
        if not 0 <= action < len(self.actions):
            raise ValueError(f"MinAtar: action is {action}; expected 0 … {len(self.actions) - 1}")
        if self.np_random.random() >= self.sticky:
            self.last_action = self.actions[action]
        rew, over = self.game.act(self.last_action)
        self.over = bool(over)
        return self.game.state().astype(np.uint8), float(rew), self.over, False, {}

    def clone_state(self) -> dict[str, Any]:
        """The game, the action that may stick, and the generator."""
        game = {name: copy.deepcopy(value) for name, value in vars(self.game).items() if name != "random"}
        return {"game": game, "last_action": self.last_action, "over": self.over, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state."""
        set_rng_state(self.np_random, state["rng"])
        vars(self.game).update(copy.deepcopy(dict(state["game"])), random=_Draws(self.np_random))
        self.last_action, self.over = state["last_action"], state["over"]


class _Draws:
    """A generator for a game, which draws from that of the environment."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def rand(self, *shape: int) -> Any:
        return self.rng.random(shape or None)

    def randint(self, low: int, high: int | None = None, size: Any = None) -> Any:
        return self.rng.integers(low, high, size)


def _game(name: str, ramping: bool) -> Any:
    # Loaded file by file: the package itself imports what it draws with.
    package = find_spec("minatar")
    if package is None or package.origin is None:
        raise ImportError(MISSING)
    folder = Path(package.origin).parent / "environments"
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    if name not in known:
        raise ValueError("MinAtar: " + unknown("game", name, known))
    spec = spec_from_file_location(f"minatar.environments.{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Env(ramping=ramping)

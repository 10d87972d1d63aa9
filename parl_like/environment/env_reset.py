"""EnvReset: how one agent's environment is reset."""

from __future__ import annotations

import warnings
from typing import Any

from parl_like.environment.process_guard import watched
from parl_like.environment.value_check import takes_option
from parl_like.interfaces import ActingAgent


class EnvReset:
    """The reset of one agent's environment: with the seed that is due, and with what its signature takes.

    Attributes:
        seed: The last one that a reset was given; None: none was.
        known: Whether the environment has been reset once.
    """

    def __init__(self, env: Any, agent: ActingAgent) -> None:
        self._env, self._agent = env, agent
        self._lacks = [name for name in ("seed", "options") if not takes_option(env.reset, name)]
        self.seed: int | None = None
        self.known = False

    def asked_seed(self, seed: int | None) -> int | None:
        """Return `seed`, where it is None the one that a helper asks for, if one does."""
        if seed is None:
            seed = next((one for helper in self._agent.helpers.values() if (one := helper.episode_seed()) is not None), None)
        return seed

    def due_seed(self, asked: int | None) -> int | None:
        """Return the seed of the reset that comes now, and keep it: `asked`; where it is None, a number below 2³¹ from the
        agent's generator for the first reset after a start or an interruption; else None."""
        agent = self._agent
        if asked is None and agent.needs_seed:
            asked = int(agent.rng.integers(2**31))
        agent.needs_seed = False
        self.seed = self.seed if asked is None else asked
        return asked

    def call(self, **options: object) -> Any:
        """Return what the environment's own reset gives. It is watched the first time, and always where the environment has
        changed something of its process before."""
        if self._lacks:
            options = self._without(options)
        if self.known and not self._agent.process_changes:
            return self._env.reset(**options)
        with watched(self._agent, "reset", not self.known):
            self.known = True
            return self._env.reset(**options)

    def _without(self, options: dict[str, object]) -> dict[str, object]:
        """Return what a reset that knows neither seeds nor options can be given; `seed(seed)` of the environment gets the
        seed."""
        seed = options.get("seed") if "seed" in self._lacks else None
        if seed is not None and callable(set_seed := getattr(self._env, "seed", None)):
            set_seed(seed)
        elif seed is not None and "seed" not in self._agent.agent_pool.warned:
            self._agent.agent_pool.warned.add("seed")
            warnings.warn(f"{self._agent}: reset of {getattr(self._env, 'unwrapped', self._env)!r} takes no seed, so no run in "
                          "it can be repeated; write reset(self, *, seed=None, options=None), and call "
                          "super().reset(seed=seed)", RuntimeWarning, stacklevel=4)
        return {name: value for name, value in options.items() if value is not None or name not in self._lacks
                if name != "seed" or "seed" not in self._lacks}

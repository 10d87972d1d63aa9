"""What the robot knows of an agent that runs in a worker, and of its environment there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RemoteEnv:
    """What hooks may ask of an environment that is in a worker: the episode that has just ended there.

    Args:
        check_hooks: Gives the hooks' methods for ended episodes, and refuses hooks that listen to more.
    """

    def __init__(self, agent: str, check_hooks: Callable[[list[Any]], list[Callable[..., None]]]) -> None:
        self._agent, self._check_hooks = agent, check_hooks
        self.episode_return: Any = 0.0
        self.episode_length = self.time_steps = self.env_index = 0
        self.post_episode: list[Callable[..., None]] = []

    def observe(self, hooks: list[Any]) -> None:
        self.post_episode = self._check_hooks(hooks)

    def close(self) -> None:
        """The worker closes it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"env.{name}: {self._agent}'s environment is in a worker process; here it has episode_return, "
                             "episode_length and env_index")


class RemoteAgent:
    """An agent of a worker; `steps` as of the last stop or checkpoint."""

    def __init__(
        self, crew: Any, index: int, label: str, like: Any, check_hooks: Callable[[list[Any]], list[Callable[..., None]]],
    ) -> None:
        self.robot, self.index, self._label = crew, index, f"{label} {index}"
        self.n_envs, self.vector, self.learns = like.n_envs, like.vector, like.learns
        self.helpers: dict[str, Any] = {}
        self.steps = 0
        self.env: Any = None if like.env is None else RemoteEnv(self._label, check_hooks)
        self.fresh = True
        self.signal: str | None = None
        self.quota_steps: int | None = None
        self.quota_episodes: int | None = None

    def __str__(self) -> str:
        return self._label

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self.__dict__.get('_label', 'an agent')} is in a worker process; here it has index, "
                             "steps and, in hooks, its environment's last episode")

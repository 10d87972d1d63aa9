"""Several tasks in one environment: each episode is of one of them, drawn evenly, by weights, or by a curriculum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from parl_like.environment.state import clone_state, restore_state


class Multitask(gym.Env[Any, Any]):
    """Environments with equal spaces as one. Observations are {obs, task}, or `obs` alone; info `task` is the number.

    `reset(options={"task": i})` plays that one, which a curriculum's task may choose; other options go to the environment.

    With `choose="progress"` the environment is its own curriculum: the chance of a task is its learning progress, the distance
    between a fast and a slow running mean of its returns; a share of the episodes, and all before each was played, are even.
    `reset(seed=…)` decides all episodes that follow, whatever was played before. The returns counted for "progress" stay.

    Args:
        makers: What make the environments.
        choose: "even", "progress", or the chance of each.
        shows_task: Whether the observation says which it is.
        share: Of even episodes, with "progress".

    Raises:
        ValueError: there is none, spaces differ, or the chances are none.
    """

    FAST, SLOW = 0.3, 0.03

    def __init__(self, makers: Sequence[Callable[[], Any]], choose: Literal["even", "progress"] | Sequence[float] = "even",
                 shows_task: bool = True, share: float = 0.2) -> None:
        self.envs = [make() for make in makers]
        spaces = [(env.observation_space, env.action_space) for env in self.envs]
        if not spaces or any(one != spaces[0] for one in spaces):
            raise ValueError(f"Multitask: the spaces are {spaces}; expected environments with equal ones")
        n, given = len(self.envs), np.ones(1) if isinstance(choose, str) else np.asarray(choose, np.float64)
        known = choose in ("even", "progress") if isinstance(choose, str) else given.shape == (n,)
        if not known or not np.isfinite(given).all() or (given < 0).any() or not given.sum() or not 0 <= share <= 1:
            raise ValueError(f"Multitask: choose is {choose!r}, share {share}; expected 'even', 'progress', or {n} chances, "
                             "and a share in [0, 1]")
        obs, self.action_space = spaces[0]
        self.shows_task, self.share, self.by_progress = shows_task, share, choose == "progress"
        self.weights = np.ones(n) / n if isinstance(choose, str) else given / given.sum()
        self.observation_space = gym.spaces.Dict({"obs": obs, "task": gym.spaces.Discrete(n)}) if shows_task else obs
        self.task, self.total = 0, 0.0
        self.seeded: set[int] = set()
        """Tasks whose environment was seeded since the last `reset(seed=…)`."""
        self.means, self.counts = np.zeros((2, n)), np.zeros(n, np.int64)

    def chances(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the chance of each task in the next episode, [n] float64."""
        progress = np.abs(self.means[0] - self.means[1])
        if not self.by_progress or not self.counts.all() or not progress.sum():
            return self.weights
        made: np.ndarray[Any, np.dtype[np.float64]] = self.share / len(progress) + (1 - self.share) * progress / progress.sum()
        return made

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        given = dict(options or {})
        task = given.pop("task") if "task" in given else self.np_random.choice(len(self.envs), p=self.chances())
        if isinstance(task, bool) or not gym.spaces.Discrete(len(self.envs)).contains(task):
            raise ValueError(f"Multitask: task is {task!r}; expected one of 0 to {len(self.envs) - 1}")
        self.task = int(task)
        self.total = 0.0
        if seed is not None:
            self.seeded.clear()
        below = None if self.task in self.seeded else int(self.np_random.integers(2**31))
        self.seeded.add(self.task)
        obs, info = self.envs[self.task].reset(seed=below, options=given or None)
        return self._seen(obs), {**info, "task": self.task}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, rew, terminated, truncated, info = self.envs[self.task].step(action)
        self.total += float(rew)
        if terminated or truncated:
            for row, rate in enumerate((self.FAST, self.SLOW)):
                new = rate if self.counts[self.task] else 1.0
                self.means[row, self.task] += new * (self.total - self.means[row, self.task])
            self.counts[self.task] += 1
        return self._seen(obs), rew, terminated, truncated, {**info, "task": self.task}

    def _seen(self, obs: Any) -> Any:
        return {"obs": obs, "task": self.task} if self.shows_task else obs

    def clone_state(self) -> dict[str, Any]:
        """Return the state of the environment that is played, of the others, and of the curriculum."""
        played = [clone_state(env) if i in self.seeded else None for i, env in enumerate(self.envs)]
        return {"envs": played, "task": self.task, "total": self.total, "means": self.means.copy(), "counts": self.counts.copy(),
                "rng": self.np_random.bit_generator.state}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `clone_state` returned. Raises ValueError where it is that of other environments."""
        if len(state["envs"]) != len(self.envs) or np.shape(state["means"]) != self.means.shape:
            raise ValueError(f"Multitask: the state is of {len(state['envs'])} environments; expected {len(self.envs)}")
        for env, part in zip(self.envs, state["envs"], strict=True):
            if part is not None:
                restore_state(env, part)
        self.seeded = {i for i, part in enumerate(state["envs"]) if part is not None}
        self.task, self.total = int(state["task"]), float(state["total"])
        self.means, self.counts = np.array(state["means"]), np.array(state["counts"])
        self.np_random.bit_generator.state = state["rng"]

    def render(self) -> Any:
        return self.envs[self.task].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()

"""EnvsTogether: n environments of gymnasium in one process that take each step together."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from parl_like.values.copying import copied
from parl_like.values.spec import Array


class EnvsTogether(SyncVectorEnv):
    """`SyncVectorEnv` with SAME_STEP and the same values, whose steps take a third of the time beside those of the environments.

    Observations are copied as they come, before an environment may write into its array again.

    Args:
        envs: The environments, with equal spaces.

    Attributes:
        new_arrays: What `step` returns is nobody else's, and of the types and sizes that gymnasium promises.
    """

    new_arrays = True

    def __init__(self, envs: list[Any]) -> None:
        super().__init__([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)  # type: ignore[misc]
        space = self.single_observation_space
        self._row: tuple[tuple[int, ...], Any] | None = (space.shape, space.dtype) if type(space) is Box else None
        self._latest: Any = None  # the newest observations, which gymnasium looks for row by row

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`, as gymnasium does."""
        if self._latest is not None:
            self._env_obs, self._latest = list(iterate(self.observation_space, self._latest)), None
            self._terminations, self._truncations = self._terminations.copy(), self._truncations.copy()
            self._autoreset_envs = self._terminations | self._truncations
        obs, info = super().reset(seed=seed, options=options)
        self._env_obs = list(map(copied, self._env_obs))
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step each environment with its action, and reset it where its episode ended: see `VectorEnv.step`."""
        n, infos = self.num_envs, dict[str, Any]()
        rew, terminated, truncated = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        shape, dtype = self._row or ((), None)
        rows = np.empty((n, *shape), dtype) if self._row else None
        odd: dict[int, Any] = {}  # observations that are no arrays of the space
        for i, (action, env) in enumerate(zip(iterate(self.action_space, actions), self.envs, strict=True)):
            obs, rew[i], terminated[i], truncated[i], info = env.step(action)
            if terminated[i] or truncated[i]:
                infos = self._add_info(infos, {"final_obs": copied(obs), "final_info": info}, i)
                obs, info = env.reset()
            if rows is not None and type(obs) is np.ndarray and obs.dtype == dtype and obs.shape == shape:
                rows[i] = obs
            else:
                odd[i] = copied(obs)
            if info:
                infos = self._add_info(infos, info, i)
        if odd:
            given = [odd[i] if i in odd else rows[i] for i in range(n)]  # type: ignore[index]
            space = self.single_observation_space
            whole: Any = create_empty_array(space, n)
            self._latest = concatenate(space, given, whole)
        else:
            self._latest = rows
        self._terminations, self._truncations = terminated, truncated
        return copied(self._latest), rew, terminated, truncated, infos

"""Many Sokoban games in one call, as a gymnasium vector environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parl_like.envs.sokoban.env import (
    SokobanEnv,
    check_render_mode,
    draw_tiles,
    find_levels,
    make_boards,
    note_on,
    obs_space,
    reset_options,
)
from parl_like.envs.sokoban.levels import Levels
from parl_like.values.spec import Array

_MODES = {AutoresetMode.DISABLED: 0, AutoresetMode.NEXT_STEP: 1, AutoresetMode.SAME_STEP: 2}


class SokobanVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """n games of `SokobanEnv` in the calling thread, without Python per game.

    Board i plays exactly as `SokobanEnv` does with seed `seed + i`. Automatic resets follow gymnasium: NEXT_STEP begins the new
    game in the step after the end, whose action is ignored and whose reward is 0; SAME_STEP begins it at once, and `final_obs`
    and `final_info` of the info hold the end; DISABLED leaves a game that is over as it is, with reward 0, until `reset`.

    Info: `level` where a game began; where there is danger, `cost`; each with gymnasium's mask (`_level`, `_cost`).

    Args:
        num_envs: Games.
        levels, kind, size, n_boxes, obs, n_danger, pomdp, max_steps: As for `SokobanEnv`.
        autoreset_mode: A gymnasium `AutoresetMode`, or its value.
        copy: False: every call returns the same observation array, in which only what changed is drawn again. Much faster; the
            caller must not write into it, and must copy what it wants to keep.
        render_mode: "ansi" or "rgb_array"; `render` then returns a tuple with one of each game.
    """

    metadata: dict[str, Any] = dict(SokobanEnv.metadata)

    def __init__(
        self, num_envs: int = 1, levels: Levels | str | os.PathLike[str] | None = None, kind: str = "train", size: int = 10,
        n_boxes: int = 4,
        *, obs: str = "image", n_danger: int = 0, pomdp: bool = False, max_steps: int = 120,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, copy: bool = True, render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        mode = AutoresetMode(autoreset_mode)
        self.num_envs = num_envs
        self.levels = find_levels(levels, kind, size, n_boxes)
        self.note = note_on(self.levels, n_boxes, kind)
        self.boards = make_boards(num_envs, self.levels, obs, n_danger=n_danger, pomdp=pomdp, max_steps=max_steps,
                                  autoreset=_MODES[mode])
        self.options: dict[str, Any] = {"obs": obs, "n_danger": n_danger, "pomdp": pomdp, "max_steps": max_steps}
        self.metadata = {**self.metadata, "autoreset_mode": mode}
        self.mode, self.n_danger, self.copy, self.render_mode = mode, n_danger, copy, render_mode
        self.single_observation_space = obs_space(self.boards, obs)
        self.single_action_space = gym.spaces.Discrete(5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs = np.zeros((num_envs, *self.boards.obs_shape), np.uint8)
        self._over: Array | None = None  # which games the step before ended; None: none
        self._seeded = np.zeros(num_envs, np.bool_)
        self._ready = False  # all games are seeded

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins games anew.

        Args:
            seed: s: game i gets s + i. A sequence: one each, None leaves a game its generator. None: generators go on; those
                never seeded are seeded from `np_random`.
            options: `level` and `counter` as for `SokobanEnv`; `reset_mask` [num_envs] bool: only these games, the others stay.

        Raises:
            ValueError: there is not one seed for each game, or reset_mask is no such array with at least one True.
        """
        if isinstance(seed, np.integer):
            seed = int(seed)
        super().reset(seed=seed if isinstance(seed, int) else None)
        chosen = dict(options or {})
        mask = chosen.pop("reset_mask", None)
        if mask is None:
            mask = np.ones(self.num_envs, np.bool_)
        elif not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"Sokoban: reset_mask is {mask!r}; expected ({self.num_envs},) bool with at least one True")
        chosen = reset_options(chosen)
        if seed is None or isinstance(seed, int):
            seeds: list[Any] = [None if seed is None else seed + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"Sokoban: {len(seeds)} seeds for {self.num_envs} games")
        which = np.flatnonzero(mask)
        for i in which.tolist():
            one = seeds[i]
            if one is not None or not self._seeded[i]:
                self.boards.seed(i, int(self.np_random.integers(2**63)) if one is None else one)
                self._seeded[i] = True
        self._ready = bool(self._seeded.all())
        self.boards.reset(which, **chosen)
        if self._over is not None:
            self._over &= ~mask
        return self.observe(), self._began(mask, {})

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One step of every game: observations, rewards [num_envs] float64, terminated and truncated [num_envs] bool, info.

        Args:
            actions: [num_envs] integers, 0 to 4.

        Raises:
            ResetNeeded: a game was never reset.
            ValueError: actions have another shape.
            TypeError: actions are no integers.
        """
        if not self._ready:
            raise gym.error.ResetNeeded("Sokoban: reset every game before the first step")
        acts = np.asarray(actions)
        if acts.dtype != np.int64 or not acts.flags.c_contiguous:
            if acts.dtype.kind not in "iu":
                raise TypeError(f"Sokoban: actions are {acts.dtype}; expected integers")
            acts = np.ascontiguousarray(acts, np.int64)
        if acts.shape != (self.num_envs,):
            raise ValueError(f"Sokoban: actions have the shape {acts.shape}; expected ({self.num_envs},)")
        n = self.num_envs
        obs = np.empty_like(self._obs) if self.copy else self._obs
        rew, terminated, truncated = np.empty(n), np.empty(n, np.bool_), np.empty(n, np.bool_)
        cost = np.empty(n, np.bool_) if self.n_danger else None
        ended = self.boards.step(acts, rew, terminated, truncated, obs, cost, in_place=not self.copy)
        before, self._over = self._over, terminated | truncated if ended or self.mode is AutoresetMode.DISABLED else None
        began = {AutoresetMode.NEXT_STEP: before, AutoresetMode.SAME_STEP: self._over}.get(self.mode)
        info: dict[str, Any] = {}
        if self.mode is AutoresetMode.SAME_STEP and began is not None:
            self._ended(began, cost, info)
        if began is not None and began.any():
            self._began(began, info)
        if cost is not None:
            here = np.ones(n, np.bool_) if began is None else ~began  # a game that has only begun has not been anywhere
            info |= {"cost": cost & here, "_cost": here}
        return obs, rew, terminated, truncated, info

    def _began(self, mask: Array, info: dict[str, Any]) -> dict[str, Any]:
        """Says which levels the games in `mask` have begun."""
        levels = np.zeros(self.num_envs, np.int64)
        for i in np.flatnonzero(mask).tolist():
            levels[i] = self.boards.level_of(i)
        info |= {"level": levels, "_level": mask.copy()}
        return info

    def _ended(self, mask: Array, cost: Array | None, info: dict[str, Any]) -> None:
        """Says how the games in `mask` ended."""
        final = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(mask).tolist():
            final[i] = np.empty(self.boards.obs_shape, np.uint8)
            self.boards.final_obs(i, final[i])
        info |= {"final_obs": final, "_final_obs": mask.copy(), "final_info": {}, "_final_info": mask.copy()}
        if cost is not None:
            info["final_info"] = {"cost": cost & mask, "_cost": mask.copy()}

    def observe(self) -> Array:
        """[num_envs, …] observations of the games as they are now; newly allocated if `copy`."""
        obs = np.empty_like(self._obs) if self.copy else self._obs
        self.boards.observe(obs, in_place=not self.copy)
        return obs

    def render(self) -> tuple[Any, ...] | None:
        return None if self.render_mode is None else tuple(draw_tiles(self.boards.tiles(i),
                                                                      self.render_mode) for i in range(self.num_envs))

    def clone_state(self, games: Sequence[int] | Array | None = None) -> dict[str, Array]:
        """Everything that what comes next depends on, of all games or those at these indices: see `Boards.clone_state`."""
        return self.boards.clone_state(games)

    def restore_state(self, state: dict[str, Array], games: Sequence[int] | Array | None = None) -> None:
        """Goes back to a cloned state. `observe` then shows it."""
        self.boards.restore_state(state, games)
        which = np.arange(self.num_envs) if games is None else np.asarray(games)
        self._seeded[which] = True
        self._ready = bool(self._seeded.all())
        over = np.zeros(self.num_envs, np.bool_) if self._over is None else self._over
        over[which] = state["done"]
        self._over = over

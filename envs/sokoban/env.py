"""Sokoban as a gymnasium environment."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.envs.sokoban._sokoban import Boards
from parl_like.envs.sokoban.levels import Levels, level_files, to_text
from parl_like.envs.sokoban.sprites import SPRITES
from parl_like.values.spec import Array

FOLDERS = {"train": "unfiltered/train", "test": "unfiltered/test", "medium": "medium/valid", "hard": "hard"}
"""Kind of level set → its folder below a Boxoban checkout."""
OBS = ("image", "planes")


def find_levels(levels: Levels | str | os.PathLike[str] | None, kind: str, size: int, n_boxes: int) -> Levels:
    """The level set that an environment's arguments mean.

    Args:
        levels: A set; a level file; a folder of level files; or a Boxoban checkout, of which the folder of `kind` is taken. None:
            the checkout that the environment variable PARL_LIKE_BOXOBAN names, if it is set and a 10×10 board with 4 boxes is
            wanted; else the generated set that ships with the package.
        kind: "train", "test", "medium" or "hard".

    Raises:
        FileNotFoundError: no such set. LevelError: a file cannot be used. ValueError: unknown kind.
    """
    if kind not in FOLDERS:
        raise ValueError(f"Sokoban: kind is {kind!r}; expected one of {', '.join(FOLDERS)}")
    if isinstance(levels, Levels):
        return levels
    if levels is None:
        checkout = os.environ.get("PARL_LIKE_BOXOBAN")
        if not checkout or (size, n_boxes) != (10, 4):
            return Levels.shipped(size, n_boxes, kind)
        levels = checkout
    path = Path(levels)
    if path.is_dir() and not level_files(path):
        names = FOLDERS[kind], FOLDERS[kind].replace("/", "_")
        found = [path / name for name in names if (path / name).is_dir()]
        if not found:
            raise FileNotFoundError(f"{path} holds neither level files nor the folder {names[0]!r} of a Boxoban checkout")
        path = found[0]
    return Levels.load(path, size, n_boxes)


BOXOBAN = {"train": 900_000, "test": 1_000, "medium": 50_000, "hard": 3_332}
"""Levels in the folder of each kind, by Boxoban's own page."""


def note_on(levels: Levels, n_boxes: int, kind: str) -> str:
    """Which levels a run plays, for its record."""
    source = Path(levels.source)
    if source.parent.name != "level_sets":
        return f"Sokoban: {len(levels):,} levels of {levels.size}×{levels.size} from {levels.source or 'memory'}"
    made = f"Sokoban: {len(levels):,} levels that were generated for this package ({source.name.partition('.')[0]})"
    boxoban = f"; Boxoban's {BOXOBAN[kind]:,} are played where PARL_LIKE_BOXOBAN names a checkout of them"
    return made + boxoban if (levels.size, n_boxes) == (10, 4) else made


def make_boards(n: int, levels: Levels, obs: str, *, n_danger: int, pomdp: bool, max_steps: int, autoreset: int) -> Boards:
    """Return n games of these levels.

    Args:
        obs: 'image' or 'planes', see `SokobanEnv`, as are n_danger and pomdp. max_steps: Of an episode.
        autoreset: 0: games that are over stay so. 1: the next step resets them. 2: the same step does.

    Raises:
        ValueError: obs is neither.
    """
    if obs not in OBS:
        raise ValueError(f"Sokoban: obs is {obs!r}; expected 'image' or 'planes'")
    return Boards(n, levels.size, levels.packed, SPRITES, n_danger=n_danger, max_steps=max_steps, autoreset=autoreset,
                  pomdp=pomdp, planes=obs == "planes")


def obs_space(boards: Boards, obs: str) -> gym.spaces.Box:
    """Return the space of one game's observation, uint8: [3, 8·size, 8·size] of an image, [5, size, size] of planes."""
    return gym.spaces.Box(0, 1 if obs == "planes" else 255, boards.obs_shape, np.uint8)


def picture(tiles: Array) -> Array:
    """[32·size, 32·size, 3] uint8 image of tile codes, for people."""
    image = np.concatenate([np.concatenate([SPRITES[code] for code in row], axis=2) for row in tiles], axis=1)
    return np.ascontiguousarray(image.repeat(4, axis=1).repeat(4, axis=2).transpose(1, 2, 0))


def draw_tiles(tiles: Array, render_mode: str | None) -> Any:
    """Text or picture, as the render mode says."""
    return to_text(tiles) if render_mode == "ansi" else picture(tiles) if render_mode == "rgb_array" else None


def check_render_mode(mode: str | None) -> None:
    """Raise ValueError for a render mode that Sokoban does not have."""
    if mode not in (None, *SokobanEnv.metadata["render_modes"]):
        raise ValueError(f"Sokoban: render_mode is {mode!r}; expected 'ansi', 'rgb_array' or None")


class SokobanEnv(gym.Env[Any, Any]):
    """Push every box onto a target.

    Actions: 0 stay, 1 up, 2 down, 3 left, 4 right; a move that cannot be made changes nothing. Rewards: −0.01 a step, +1 for a
    box onto a target, −1 for a box off one, +10 when no box is left, which terminates. The step counter starts at a uniform 0 …
    5; the step that begins with the counter at `max_steps` − 1 truncates, also if it solves the level. After the end a step moves
    nothing and gives 0.

    Observation: `image` [3, 8·size, 8·size] uint8 (3, 80, 80 for Boxoban's levels), or `planes` [5, size, size] uint8 of 0 and 1:
    wall, target, box, player, danger. Every observation is an array of its own.

    Info: of `reset`, `level` (index in the set); of `step`, where there is danger, `cost`: whether the player stands on it.

    `reset` takes the options `level` (index) and `counter` (where the step counter starts) instead of random ones.

    Args:
        levels: A `Levels`, a file, a folder, a Boxoban checkout; None: see `find_levels`. A set is loaded once and shared.
        kind: Which set: "train", "test", "medium", "hard".
        size: Cells along a side, 5 to 10; 0: as the files have.
        n_boxes: Of every level; 1 to 4 for the shipped sets; 0: as the files have.
        obs: "image" or "planes".
        n_danger: Random empty floor cells that become danger at each reset.
        pomdp: The observation shows the player one random feasible step (none, or in a free direction) from where it is.
        max_steps: See above.
        render_mode: "ansi": text. "rgb_array": [32·size, 32·size, 3] uint8. Both show the true state.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 5}

    def __init__(
        self, levels: Levels | str | os.PathLike[str] | None = None, kind: str = "train", size: int = 10, n_boxes: int = 4, *,
        obs: str = "image", n_danger: int = 0, pomdp: bool = False, max_steps: int = 120, render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.levels = find_levels(levels, kind, size, n_boxes)
        self.note = note_on(self.levels, n_boxes, kind)
        self.boards = make_boards(1, self.levels, obs, n_danger=n_danger, pomdp=pomdp, max_steps=max_steps, autoreset=0)
        self.n_danger = n_danger
        self.render_mode = render_mode
        self.observation_space = obs_space(self.boards, obs)
        self.action_space = gym.spaces.Discrete(5)
        self._seeded = False
        self._act = np.zeros(1, np.int64)
        self._rew = np.zeros(1)
        self._flags = np.zeros((3, 1), np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = reset_options(options)
        if seed is not None or not self._seeded:
            self.boards.seed(0, int(self.np_random.integers(2**63)) if seed is None else seed)
            self._seeded = True
        self.boards.reset(**chosen)
        return self.observe(), {"level": self.boards.level_of(0)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes a move, see the class.

        Raises:
            ResetNeeded: there was no reset.
        """
        if not self._seeded:
            raise gym.error.ResetNeeded("Sokoban: reset before the first step")
        self._act[0] = operator.index(action)
        obs = np.empty(self.boards.obs_shape, np.uint8)
        terminated, truncated, cost = self._flags
        self.boards.step(self._act, self._rew, terminated, truncated, obs, cost)
        return obs, float(self._rew[0]), bool(terminated[0]), bool(truncated[0]), {"cost": bool(cost[0])} if self.n_danger else {}

    def observe(self) -> Array:
        """The observation of the state as it is now, newly allocated."""
        obs = np.empty(self.boards.obs_shape, np.uint8)
        self.boards.observe(obs)
        return obs

    def render(self) -> Any:
        return draw_tiles(self.boards.tiles(0), self.render_mode)

    def clone_state(self) -> dict[str, Array]:
        """Everything that what comes next depends on, as arrays: see `Boards.clone_state`."""
        return self.boards.clone_state()

    def restore_state(self, state: dict[str, Array]) -> None:
        """Goes back to a cloned state, also one of another environment with the same levels and arguments."""
        self.boards.restore_state(state)
        self._seeded = True


def reset_options(options: dict[str, Any] | None) -> dict[str, Any]:
    """`level` and `counter` of a reset's options. Raises ValueError for other keys."""
    chosen = dict(options or {})
    if unknown := set(chosen) - {"level", "counter"}:
        raise ValueError(f"Sokoban: reset has no option {', '.join(map(repr, sorted(unknown)))}; there are 'level' and 'counter'")
    return chosen

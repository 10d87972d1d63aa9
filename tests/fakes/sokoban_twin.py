"""Sokoban's rules for one board, in plain Python on tile codes. The tests compare the compiled boards with it."""

from __future__ import annotations

import numpy as np

from parl_like.envs.sokoban.levels import Levels
from parl_like.envs.sokoban.sprites import SPRITES
from parl_like.values.spec import Array

WALL, FLOOR, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET, TARGET, DANGER, BOX_ON_DANGER, PLAYER_ON_DANGER = range(10)
BOXES, PLAYERS, FREE = (BOX, BOX_ON_TARGET, BOX_ON_DANGER), (PLAYER, PLAYER_ON_TARGET, PLAYER_ON_DANGER), (FLOOR, TARGET, DANGER)
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # (rows, columns): no-op, up, down, left, right
U64 = 2**64 - 1


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & U64
    return z ^ z >> 31


class Rng:
    """SplitMix64."""

    def __init__(self, seed: int) -> None:
        self.state = mix(seed + 0x9E3779B97F4A7C15 & U64)

    def below(self, n: int) -> int:
        """Uniform in 0 … n − 1."""
        while True:
            self.state = self.state + 0x9E3779B97F4A7C15 & U64
            product = (mix(self.state) >> 32) * n
            if product % 2**32 >= 2**32 % n:
                return product >> 32


class ReferenceBoard:
    """One board that never resets by itself. Arguments as those of `Boards`.

    Attributes:
        tiles: [size, size] uint8 codes.
    """

    def __init__(self, levels: Levels, seed: int, *, n_danger: int = 0, max_steps: int = 120, pomdp: bool = False,
                 planes: bool = False):
        self.levels, self.n_danger, self.max_steps, self.pomdp, self.planes = levels, n_danger, max_steps, pomdp, planes
        self.rng = Rng(seed)

    def reset(self, level: int | None = None, counter: int | None = None) -> Array:
        """Begins a game and returns the observation."""
        self.level = self.rng.below(len(self.levels)) if level is None else level
        self.tiles = self.levels[self.level]
        empty = [tuple(cell) for cell in np.argwhere(self.tiles == FLOOR)]
        for k in range(min(self.n_danger, len(empty))):
            pick = k + self.rng.below(len(empty) - k)
            empty[k], empty[pick] = empty[pick], empty[k]
            self.tiles[empty[k]] = DANGER
        self.counter = self.rng.below(6) if counter is None else counter
        self.done = False
        self.shown_step = self.feasible_step()
        return self.observe()

    def step(self, action: int) -> tuple[Array, float, bool, bool, bool]:
        """Returns (obs, reward, terminated, truncated, cost). After the end nothing moves and the reward is 0."""
        over = self.done
        rew = 0.0
        if not over:
            gain = self.move(action)
            if self.left() == 0:
                gain += 10
                self.done = True
            rew = -0.01 + gain
        truncated = self.counter >= self.max_steps - 1
        if truncated:
            self.done = True
        else:
            self.counter += 1
        if not over or self.pomdp:
            self.shown_step = self.feasible_step()
        return self.observe(), rew, self.left() == 0, truncated, self.tiles[self.player()] == PLAYER_ON_DANGER

    def player(self) -> tuple[int, int]:
        row, column = np.argwhere(np.isin(self.tiles, PLAYERS))[0]
        return int(row), int(column)

    def left(self) -> int:
        """Boxes that are not on a target."""
        return int(np.isin(self.tiles, (BOX, BOX_ON_DANGER)).sum())

    def at(self, cell: tuple[int, int]) -> int:
        """Tile code; outside the board is wall."""
        return int(self.tiles[cell]) if min(cell) >= 0 and max(cell) < len(self.tiles) else WALL

    def lift(self, cell: tuple[int, int]) -> int:
        """Takes box or player off a cell and returns which kind of ground was below: floor, target or danger."""
        ground = {BOX_ON_TARGET: TARGET, PLAYER_ON_TARGET: TARGET, BOX_ON_DANGER: DANGER,
                  PLAYER_ON_DANGER: DANGER}.get(self.at(cell), FLOOR)
        self.tiles[cell] = ground
        return ground

    def drop(self, cell: tuple[int, int], on: dict[int, int]) -> int:
        """Puts on free ground what becomes `on[ground]` there; returns the ground."""
        ground = self.at(cell)
        self.tiles[cell] = on[ground]
        return ground

    def move(self, action: int) -> int:
        """Moves the player, if it can; returns boxes onto targets less boxes off targets."""
        rows, columns = MOVES[action]
        here = self.player()
        ahead = here[0] + rows, here[1] + columns
        beyond = ahead[0] + rows, ahead[1] + columns
        gain = 0
        if self.at(ahead) in BOXES and self.at(beyond) in FREE:
            gain -= self.lift(ahead) == TARGET
            gain += self.drop(beyond, {FLOOR: BOX, TARGET: BOX_ON_TARGET, DANGER: BOX_ON_DANGER}) == TARGET
        if self.at(ahead) in FREE:
            self.lift(here)
            self.drop(ahead, {FLOOR: PLAYER, TARGET: PLAYER_ON_TARGET, DANGER: PLAYER_ON_DANGER})
        return gain

    def feasible_step(self) -> int:
        """The step by which the observation lies under `pomdp`: none, or one in a free direction."""
        if not self.pomdp:
            return 0
        row, column = self.player()
        feasible = [a for a, (down, right) in enumerate(MOVES) if a == 0 or self.at((row + down, column + right)) in FREE]
        return feasible[self.rng.below(len(feasible))]

    def observe(self) -> Array:
        """[3, 8·size, 8·size] uint8 image, or [5, size, size] planes: wall, target, box, player, danger."""
        true = self.tiles.copy()
        self.move(self.shown_step)
        shown, self.tiles = self.tiles, true
        if self.planes:
            kinds = ((WALL,), (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET), BOXES, PLAYERS,
                     (DANGER, BOX_ON_DANGER, PLAYER_ON_DANGER))
            return np.stack([np.isin(shown, kind) for kind in kinds]).astype(np.uint8)
        return np.concatenate([np.concatenate([SPRITES[code] for code in row], axis=2) for row in shown], axis=1)

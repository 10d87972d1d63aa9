"""Four rooms with a doorway between each two neighbours, and a goal that may move (Sutton, Precup & Singh 1999)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.envs.tabular import Outcome, TableEnv

ROOMS = """
#############
#.....#.....#
#.....#.....#
#...........#
#.....#.....#
#.....#.....#
##.####.....#
#.....###.###
#.....#.....#
#.....#.....#
#...........#
#.....#.....#
#############
"""
"""The rooms of Sutton, Precup & Singh (1999): # is a wall; 104 cells are free, four of them doorways."""

STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))


class FourRooms(TableEnv):
    """A step leads where it is meant to with probability 2/3, and in each of the other three directions with 1/9; into a wall it
    stays. The goal pays 1 and ends the episode, all else 0. Each episode starts in a free cell, drawn evenly, the goal not among
    them.

    Observation: the number of the cell, free ones counted row by row. Actions: 0 up, 1 right, 2 down, 3 left.

    Args:
        goal: Cell of the goal; 62 is the doorway in the east.
        moved: Cell of the goal after it has moved, such as 89 in the room in the south-east; None: it stays.
        moves_after: Steps of this environment after which it moves, at the next reset.
        render_mode: "ansi": the rooms with the walker `*` and the goal `G`.

    Attributes:
        cells: [S, 2] row and column of each cell.

    Raises:
        ValueError: a cell does not exist, or `moves_after` is negative.
    """

    def __init__(self, goal: int = 62, moved: int | None = None, moves_after: int = 0, *, render_mode: str | None = None) -> None:
        rows = ROOMS.split()
        self.cells = np.argwhere(np.array([list(row) for row in rows]) == ".")
        number = {(int(y), int(x)): i for i, (y, x) in enumerate(self.cells)}
        self.reached = [[number.get((int(y) + dy, int(x) + dx), i) for dy, dx in STEPS] for i, (y, x) in enumerate(self.cells)]
        self.goals = (goal, goal if moved is None else moved)
        for name, cell in zip(("goal", "moved"), self.goals, strict=True):
            if not 0 <= operator.index(cell) < len(number):
                raise ValueError(f"FourRooms: {name} is {cell}; expected a cell, 0 to {len(number) - 1}")
        if moves_after < 0:
            raise ValueError(f"FourRooms: moves_after is {moves_after}; expected a number of steps, at least 0")
        self.moves_after, self.steps, self.goal = moves_after, 0, -1
        self._set_goal(self.goals[0], render_mode)

    def _set_goal(self, goal: int, render_mode: str | None) -> None:
        if goal == self.goal:
            return
        self.goal = goal
        n = len(self.cells)

        def outcomes(s: int, a: int) -> list[Outcome]:
            if s == goal:
                return [(1.0, s, 0.0, True)]
            chances: dict[int, float] = {}
            for step, to in enumerate(self.reached[s]):
                chances[to] = chances.get(to, 0.0) + (2 / 3 if step == a else 1 / 9)
            return [(p, to, float(to == goal), to == goal) for to, p in chances.items()]

        start = np.where(np.arange(n) == goal, 0.0, 1.0 / (n - 1))
        self._build([[outcomes(s, a) for a in range(4)] for s in range(n)], start, render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begins an episode, see `TableEnv.reset`; now the goal moves, where it is time."""
        self._set_goal(self.goals[self.steps >= self.moves_after], self.render_mode)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        out = super().step(action)
        self.steps += 1
        return out

    def render(self) -> Any:
        if self.render_mode != "ansi":
            return None
        picture = [list(row) for row in ROOMS.split()]
        for cell, letter in ((self.goal, "G"), (self.state, "*")):
            y, x = self.cells[cell]
            picture[y][x] = letter
        return "\n".join(map("".join, picture)) + "\n"

    def clone_state(self) -> dict[str, Any]:
        return {**super().clone_state(), "steps": self.steps, "goal": self.goal}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same goals.

        Raises:
            ValueError: it is one of another goal.
        """
        if state["goal"] not in self.goals:
            raise ValueError(f"FourRooms: the cloned state has its goal in cell {state['goal']}; here it is in one of "
                             f"{self.goals}")
        self._set_goal(state["goal"], self.render_mode)
        self.steps = state["steps"]
        super().restore_state(state)

"""Small problems of the textbooks, each given by its tables: a maze, a chain, a river, blackjack, and slot machines.

The random walk is in `parl_like.envs.tabular`; the cliff, FrozenLake and Taxi are gymnasium's.
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.tabular import Outcome, TableEnv
from parl_like.values.limits import check_array
from parl_like.values.spec import Array

MAZE = """
.......#G
..#....#.
S.#....#.
..#......
.....#...
.........
"""
"""The Dyna maze of Sutton & Barto (2018), example 8.1: from S to G, # is a wall."""


class Maze(TableEnv):
    """A maze: 0 up, 1 right, 2 down, 3 left; a step into a wall or over the border stays where it is. The goal pays 1 and ends
    the episode, all else 0. The observation is the number of the cell, row by row.

    Args:
        text: Rows of cells: `.` free, `#` wall, one `S` and one `G`.
        render_mode: "ansi".

    Raises:
        ValueError: rows differ in length, a cell is none of these, or there is not one S and one G.
    """

    def __init__(self, text: str = MAZE, *, render_mode: str | None = None) -> None:
        rows = text.split()
        cells = "".join(rows)
        if len({len(row) for row in rows}) != 1 or set(cells) - set(".#SG") or cells.count("S") != 1 or cells.count("G") != 1:
            raise ValueError(f"Maze: text is {text!r:.80}; expected rows of one length of . # and one S and one G")
        width, n = len(rows[0]), len(cells)
        check_array(f"Maze: text is {text!r:.20}… with {n} cells", n, 4, n, dtype=np.float64)
        at = np.arange(n)
        y, x = at // width, at % width
        P = np.stack([np.where(inside, at + step, at) for inside, step in (
            (y > 0, -width), (x < width - 1, 1), (y < len(rows) - 1, width), (x > 0, -1))], 1)
        wall = np.array([cell == "#" for cell in cells])
        P = np.where(wall[P], at[:, None], P)
        goal = cells.index("G")
        super().__init__(P, (P == goal).astype(np.float64), terminal=[goal], start=cells.index("S"), render_mode=render_mode)


class NChain(TableEnv):
    """A chain of n states in which it pays to go on (Strens 2000): 0 goes forward for nothing, and pays 10 at the end of the
    chain, where it stays; 1 goes back to the first state and pays 2. One action in five does what the other would. It never
    ends; `NChain-v0` is cut after 1,000 steps.

    Args:
        n: States, at least 2.
        slip: Probability of the other action.
        small, large: The rewards.

    Raises:
        ValueError: n is below 2, or slip is no probability.
    """

    def __init__(self, n: int = 5, slip: float = 0.2, small: float = 2.0, large: float = 10.0, *,
                 render_mode: str | None = None) -> None:
        if n < 2 or not 0.0 <= slip <= 1.0:
            raise ValueError(f"NChain: n is {n}, slip {slip}; expected at least 2 states, and a probability")
        check_array(f"NChain: n is {n}", n, 2, n, dtype=np.float64)
        outcomes = []
        for s in range(n):
            forward = min(s + 1, n - 1), large if s == n - 1 else 0.0, False
            back = 0, small, False
            outcomes.append([[(1.0 - slip, *one), (slip, *other)] for one, other in ((forward, back), (back, forward))])
        self._build(outcomes, 0, render_mode)


class RiverSwim(TableEnv):
    """A river to swim up (Strehl & Littman 2008, with the numbers of Osband, Russo and Van Roy 2013): 0 goes with the stream and
    pays 0.005 in the first state; 1 goes against it, succeeds now and then, and pays 1 in the last. It never ends; `RiverSwim-v0`
    is cut after 20 steps.

    Args:
        n: States, at least 2.

    Raises:
        ValueError: n is below 2.
    """

    def __init__(self, n: int = 6, *, render_mode: str | None = None) -> None:
        if n < 2:
            raise ValueError(f"RiverSwim: n is {n}; expected at least 2 states")
        check_array(f"RiverSwim: n is {n}", n, 2, n, dtype=np.float64)
        P, R = np.zeros((n, 2, n)), np.zeros((n, 2))
        for s in range(n):
            P[s, 0, max(s - 1, 0)] = 1.0
            P[s, 1, [s - 1, s, min(s + 1, n - 1)]] = 0.05, 0.6, 0.35
        P[0, 1], P[-1, 1] = 0.0, 0.0
        P[0, 1, :2], P[-1, 1, -2:] = (0.4, 0.6), (0.4, 0.6)
        R[0, 0], R[-1, 1] = 0.005, 1.0
        super().__init__(P, R, start=0, render_mode=render_mode)


class BlackjackTable(TableEnv):
    """Blackjack of Sutton & Barto (2018), example 5.1, with an endless deck, as a table; gymnasium's `Blackjack-v1` without its
    options is the same game with another observation.

    Observation: (sum − 4) + 18 · (dealer − 1) for a hard sum of 4 to 21, and 180 + (sum − 12) + 10 · (dealer − 1) for a soft one
    of 12 to 21; the dealer's card is 1 (an ace) to 10. `number` does that. Actions: 0 stick, 1 hit. The reward is 1, 0 or −1.

    Args:
        start: None: as cards fall; or the first state.
    """

    def __init__(self, start: int | None = None, *, render_mode: str | None = None) -> None:
        dealers = [_dealer(card) for card in range(1, 11)]

        def stick(total: int, dealer: int) -> list[Outcome]:
            ends = dealers[dealer - 1]  # index 0: bust
            win = ends[0] + ends[1:total].sum()
            return [(p, 0, r, True) for p, r in ((win, 1.0), (ends[total], 0.0), (1.0 - win - ends[total], -1.0)) if p > 1e-15]

        def hit(total: int, dealer: int, soft: bool) -> list[Outcome]:
            found: list[Outcome] = []
            for card, p in _CARDS:
                new, ace = _with(total, soft, card)
                found.append((p, 0, -1.0, True) if new > 21 else (p, self.number(new, dealer, ace), 0.0, False))
            return found

        outcomes: list[Any] = [None] * 280
        first = np.zeros(280)
        for dealer, chance in _CARDS:
            for total, soft in [*((t, False) for t in range(4, 22)), *((t, True) for t in range(12, 22))]:
                outcomes[self.number(total, dealer, soft)] = [stick(total, dealer), hit(total, dealer, soft)]
            for one, p in _CARDS:
                for two, q in _CARDS:
                    total, soft = _with(*_with(0, False, one), two)
                    first[self.number(total, dealer, soft)] += chance * p * q
        self._build(outcomes, first if start is None else start, render_mode)

    @staticmethod
    def number(total: int, dealer: int, soft: bool) -> int:
        """Return the observation of a sum, the dealer's card, and whether an ace counts 11."""
        return 180 + total - 12 + 10 * (dealer - 1) if soft else total - 4 + 18 * (dealer - 1)


_CARDS = [*((card, 1 / 13) for card in range(1, 10)), (10, 4 / 13)]


def _with(total: int, soft: bool, card: int) -> tuple[int, bool]:
    """A sum with one more card, and whether an ace in it counts 11."""
    total += card
    if card == 1 and not soft and total + 10 <= 21:
        return total + 10, True
    return (total - 10, False) if soft and total > 21 else (total, soft)


def _dealer(card: int) -> Array:
    """[22] probability of each sum at which a dealer with this card stops, at 17 or above; index 0: above 21."""
    found = np.zeros(22)

    def draw(total: int, soft: bool, p: float) -> None:
        if total >= 17:
            found[total if total <= 21 else 0] += p
        else:
            for one, chance in _CARDS:
                draw(*_with(total, soft, one), p * chance)

    draw(*_with(0, False, card), 1.0)
    return found


class Testbed(gym.Env[Any, Any]):
    """Slot machines, the 10-armed testbed of Sutton & Barto (2018), section 2.3: problems one after the other, an episode of one
    pull for each.

    Observation: the number of the problem. Reward: normal with the mean of the arm, standard deviation 1; the means are standard
    normal. `info["is_success"]`: whether it was the best arm.

    Args:
        problems, arms: How many there are.
        problems_seed: Draws the means, which no `reset` changes.

    Attributes:
        means: [problems, arms] float64. best: [problems], the best arm.

    Raises:
        ValueError: problems is below 1, or arms below 2.
    """

    metadata = {"render_modes": []}

    def __init__(self, problems: int = 2000, arms: int = 10, problems_seed: int = 0) -> None:
        if problems < 1 or arms < 2:
            raise ValueError(f"Testbed: problems is {problems}, arms {arms}; expected at least 1, and 2")
        check_array(f"Testbed: problems is {problems}, arms {arms}", problems, arms, dtype=np.float64)
        self.means = np.random.default_rng(problems_seed).normal(size=(problems, arms))
        self.best = self.means.argmax(1)
        self.observation_space = gym.spaces.Discrete(problems)
        self.action_space = gym.spaces.Discrete(arms)
        self.problem, self._open = -1, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Goes on to the next problem."""
        super().reset(seed=seed)
        self.problem = 0 if seed is not None else (self.problem + 1) % len(self.means)
        self._open = True
        return self.problem, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Pulls an arm, which ends the episode.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is no number of an arm.
        """
        arm, arms = operator.index(action), self.means.shape[1]
        if not self._open:
            raise gym.error.ResetNeeded("Testbed: step() without an open episode; call reset() first")
        if not 0 <= arm < arms:
            raise ValueError(f"Testbed: action is {arm}; expected 0 to {arms - 1}")
        self._open = False
        reward = float(self.means[self.problem, arm] + self.np_random.normal())
        return self.problem, reward, True, False, {"is_success": bool(arm == self.best[self.problem])}

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on. Plain values."""
        return {"problem": self.problem, "open": self._open, "rng": rng_state(self.np_random)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to a cloned state.

        Raises:
            ValueError: there is no problem of this number.
        """
        if not -1 <= state["problem"] < len(self.means):
            raise ValueError(f"Testbed: cloned problem {state['problem']} does not exist here; there are {len(self.means)}")
        self.problem, self._open = state["problem"], state["open"]
        set_rng_state(self.np_random, state["rng"])

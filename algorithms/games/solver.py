"""Solver: the base of what solves games by iterations, and how its state is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.data.storage.state_check import check_alike
from parl_like.envs.games.game import Game, Policy
from parl_like.values import plain
from parl_like.values.plain import State


class Solver(ABC):
    """Iterations over a game, and the policy that they have come to.

    One that is loaded goes on exactly: it makes the same iterates as the one that was saved, if both were made with the same
    arguments.

    Attributes:
        game: What is solved. iterations: How many are done.
        arrays: Names of the attributes, float64 arrays, that hold all that was learned.
    """

    game: Game
    iterations: int
    arrays: tuple[str, ...] = ()

    @abstractmethod
    def learn(self, iterations: int = 1) -> None:
        """Go through so many iterations."""

    @abstractmethod
    def average_policy(self) -> Policy:
        """Return what acts, and what is evaluated."""

    def state_dict(self) -> State:
        """Return copies of all that the next iterations go by: arrays and plain values."""
        return {"solver": type(self).__name__, "game": repr(self.game), "iterations": self.iterations, "learned": self._learned()}

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` gave.

        Raises:
            ValueError: it is the state of another solver or game, or has other types, shapes, or numbers that are not finite;
                nothing has been changed.
        """
        who, own = type(self).__name__, self.state_dict()
        if missing := own.keys() - state.keys():
            raise ValueError(f"{who}: the state has no {min(missing)!r}; expected what state_dict() of a {who} gave")
        for name in ("solver", "game"):
            if state[name] != own[name]:
                raise ValueError(f"{who}: the state is that of {state[name]!r:.80}; expected {own[name]!r}")
        check_alike(state, own, who)
        self._take(plain.entries(state["learned"]))
        self.iterations = plain.whole(state["iterations"])

    def save(self, path: str | Path) -> None:
        """Write the state into a directory, completely or not at all, without code in it. Raises as `write_archive`."""
        write_archive(Path(path), {"state": self.state_dict()})

    def load(self, path: str | Path) -> None:
        """Take over what `save` wrote. Raises ValueError as `load_state_dict`, and ArchiveError for a damaged directory."""
        self.load_state_dict(plain.entries(read_archive(Path(path))[0].get("state")))

    def _learned(self) -> State:
        """Return copies of what was learned."""
        return {name: getattr(self, name).copy() for name in self.arrays}

    def _take(self, learned: State) -> None:
        """Take over what `_learned` gave. Raises ValueError, and changes nothing then."""
        taken = {}
        for name in self.arrays:
            own, array = getattr(self, name), learned.get(name)
            if not isinstance(array, np.ndarray) or array.shape != own.shape or not np.isfinite(array).all():
                raise ValueError(f"{type(self).__name__}: {name!r} of the state is {array!r:.60}; expected finite numbers "
                                 f"{own.shape}, as the game's tree has them")
            taken[name] = array.astype(np.float64)
        for name, array in taken.items():
            setattr(self, name, array)

"""OpenSpiel's games (Lanctot et al. 2019) as ours, by the extra `games`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parl_like.envs.games.game import CHANCE, TERMINAL, Game, State, Traits
from parl_like.values.spec import Array

MISSING = "OpenSpielGame needs OpenSpiel; install the extra: pip install 'parl_like[games]'"
_CHANCE: dict[str, Any] = {"DETERMINISTIC": "deterministic", "EXPLICIT_STOCHASTIC": "explicit", "SAMPLED_STOCHASTIC": "sampled"}
_UTILITY: dict[str, Any] = {"ZERO_SUM": "zero_sum", "IDENTICAL": "identical"}


class OpenSpielGame(Game):
    """A game of OpenSpiel by its name, such as "kuhn_poker"; one of simultaneous moves is made turn-based.

    Key: what OpenSpiel calls the information state, or the observation where the game has no other. So with the tensor.

    Args:
        name: As `pyspiel.load_game` takes it.
        parameters: Of the game, `players=3`.

    Raises:
        ImportError: OpenSpiel is not installed.
        ValueError: there is no such game, or it does not take these parameters, or players cannot be enumerated in it (mean
        field).
    """

    def __init__(self, name: str, **parameters: int | float | str | bool) -> None:
        try:
            import pyspiel
        except ImportError:
            raise ImportError(MISSING) from None
        try:
            self.theirs: Any = pyspiel.load_game_as_turn_based(name, parameters)
        except (pyspiel.SpielError, TypeError) as error:
            raise ValueError(f"OpenSpielGame: {str(error).splitlines()[0]}") from None
        self.name, self.parameters, kind = name, parameters, self.theirs.get_type()
        if kind.dynamics.name != "SEQUENTIAL":
            raise ValueError(f"OpenSpielGame: {name} is a game of {kind.dynamics.name.lower()} dynamics; expected one whose "
                             "players move in turn or at once")
        self.full_state = kind.provides_information_state_string, kind.provides_information_state_tensor
        n = self.theirs.num_players()
        styles = [style for style, has in (
            ("key", self.full_state[0] or kind.provides_observation_string),
            ("tensor", self.full_state[1] or kind.provides_observation_tensor)) if has]
        self.traits = Traits(
            n_players=n, information="perfect" if kind.information.name == "PERFECT_INFORMATION" else "imperfect",
            chance=_CHANCE[kind.chance_mode.name], utility=_UTILITY.get(kind.utility.name, "general"),
            reward="terminal" if kind.reward_model.name == "TERMINAL" else "step", styles=("history", *styles))
        self.n_players, self.n_actions, self.max_moves = n, self.theirs.num_distinct_actions(), self.theirs.max_game_length()
        shape = () if "tensor" not in styles else (
            self.theirs.information_state_tensor_shape() if self.full_state[1] else self.theirs.observation_tensor_shape())
        self.tensor_size = int(np.prod(shape)) if shape else 0
        self.utility_range = self.theirs.min_utility(), self.theirs.max_utility()

    def start(self) -> OpenSpielState:
        return OpenSpielState(self)

    def __repr__(self) -> str:
        return f"OpenSpielGame({', '.join([repr(self.name), *(f'{key}={value!r}' for key, value in self.parameters.items())])})"


class OpenSpielState(State):
    """A state of OpenSpiel, and those before it, since OpenSpiel's own cannot all be taken back."""

    game: OpenSpielGame

    def __init__(self, game: OpenSpielGame) -> None:
        super().__init__(game)
        self._path = [game.theirs.new_initial_state()]

    @property
    def theirs(self) -> Any:
        """Return OpenSpiel's own state; it is not to be changed."""
        return self._path[-1]

    @property
    def player(self) -> int:
        player = int(self.theirs.current_player())
        return {-1: CHANCE, -4: TERMINAL}.get(player, player)

    def legal(self) -> Sequence[int]:
        return self.theirs.legal_actions()  # type: ignore[no-any-return]

    def chance(self) -> list[tuple[int, float]]:
        return self.theirs.chance_outcomes()  # type: ignore[no-any-return]

    def apply(self, action: int) -> None:
        super().apply(action)
        self._path.append(self.theirs.child(action))

    def undo(self) -> None:
        super().undo()
        self._path.pop()

    def returns(self) -> tuple[float, ...]:
        return tuple(self.theirs.returns())

    def key(self, player: int | None = None) -> str:
        viewer, state = self._viewer(player), self.theirs
        return str(state.information_state_string(viewer) if self.game.full_state[0] else state.observation_string(viewer))

    def tensor(self, player: int | None = None) -> Array:
        viewer, state = self._viewer(player), self.theirs
        return np.array(state.information_state_tensor(viewer) if self.game.full_state[1] else state.observation_tensor(viewer),
                        np.float32)

    def __str__(self) -> str:
        return str(self.theirs)

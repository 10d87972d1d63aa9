"""Turn-based games: Kuhn poker, Leduc poker, tic-tac-toe, and what a game must offer.

A `Game` says how many players and actions there are and which `Traits` it has, and starts a `State`. A state knows who is to move
(a player, chance, or nobody), what is legal, and what each player knows: the *information state*, as a text (`key`, for tables)
and as numbers (`tensor`, for networks). It is changed in place by `apply` and taken back by `undo`, so a walk over the whole tree
copies nothing. `GameEnv` is a game as one player's gymnasium environment. The traits are those of OpenSpiel (Lanctot et al.,
2019).
"""

from parl_like.envs.games.env import FRUITLESS, GameEnv, draw
from parl_like.envs.games.game import CHANCE, TERMINAL, Game, Policy, State, TablePolicy, Traits, uniform
from parl_like.envs.games.poker import Kuhn, KuhnState, Leduc, LeducState
from parl_like.envs.games.tictactoe import TicTacToe, TicTacToeState

__all__ = ["CHANCE", "FRUITLESS", "TERMINAL", "Game", "GameEnv", "Kuhn", "KuhnState", "Leduc", "LeducState", "Policy", "State",
           "TablePolicy", "TicTacToe", "TicTacToeState", "Traits", "draw", "uniform"]

"""Games: Kuhn and Leduc poker, liar's dice, tic-tac-toe, connect four, matrix games, OpenSpiel's; and what a game must offer.

A `Game` says how many players and actions there are and which `Traits` it has, and starts a `State`. A state knows who is to move
(a player, chance, all at once, or nobody), what is legal, and what each player knows: the *information state*, as a text (`key`,
for tables) and as numbers (`tensor`, for networks). It is changed in place by `apply` and taken back by `undo`, so a walk over
the whole tree copies nothing. `GameEnv` is a game as one player's gymnasium environment. The traits are those of OpenSpiel
(Lanctot et al., 2019).
"""

from parl_like.envs.games.connect_four import ConnectFour, ConnectFourState
from parl_like.envs.games.env import FRUITLESS, GameEnv, draw
from parl_like.envs.games.game import CHANCE, SIMULTANEOUS, TERMINAL, Game, Policy, State, TablePolicy, Traits, uniform
from parl_like.envs.games.liars_dice import LiarsDice, LiarsDiceState
from parl_like.envs.games.openspiel import OpenSpielGame, OpenSpielState
from parl_like.envs.games.poker import Kuhn, KuhnState, Leduc, LeducState
from parl_like.envs.games.simultaneous import MatrixGame, MatrixState, RockPaperScissors, TurnBased, TurnBasedState
from parl_like.envs.games.tictactoe import TicTacToe, TicTacToeState

__all__ = ["CHANCE", "FRUITLESS", "SIMULTANEOUS", "TERMINAL", "ConnectFour", "ConnectFourState", "Game", "GameEnv", "Kuhn",
           "KuhnState", "Leduc", "LeducState", "LiarsDice", "LiarsDiceState", "MatrixGame", "MatrixState", "OpenSpielGame",
           "OpenSpielState", "Policy", "RockPaperScissors", "State", "TablePolicy", "TicTacToe", "TicTacToeState", "Traits",
           "TurnBased", "TurnBasedState", "draw", "uniform"]

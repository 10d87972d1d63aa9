"""Solving games by walks over their trees, in NumPy: what a policy gives away, and policies that give nothing away.

`best_response` measures a policy; `cfr` and `mccfr` find equilibria of games with hidden cards, `sequence_form` their exact
value; `minimax` solves games that hide nothing, and `mcts` searches in them. `game_tree` has a game as arrays.
"""

from parl_like.algorithms.games.best_response import best_response, expected_returns, exploitability, nash_conv
from parl_like.algorithms.games.cfr import CFR, CFRPlus
from parl_like.algorithms.games.deep_cfr import DeepCFR
from parl_like.algorithms.games.exploitability_descent import ExploitabilityDescent
from parl_like.algorithms.games.fictitious_play import FictitiousPlay
from parl_like.algorithms.games.mccfr import ExternalSampling, OutcomeSampling
from parl_like.algorithms.games.mcts import MCTS
from parl_like.algorithms.games.minimax import alpha_beta, minimax
from parl_like.algorithms.games.sequence_form import game_value

__all__ = ["CFR", "CFRPlus", "DeepCFR", "ExploitabilityDescent", "ExternalSampling", "FictitiousPlay", "MCTS", "OutcomeSampling",
           "alpha_beta", "best_response", "expected_returns", "exploitability", "game_value", "minimax", "nash_conv"]

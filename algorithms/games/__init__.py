"""Solving games by walks over their trees, in NumPy: what a policy gives away, and policies that give nothing away.

`best_response` measures a policy; `cfr` and `mccfr` find equilibria of games with hidden cards. `game_tree` has a game as arrays.
"""

from parl_like.algorithms.games.best_response import best_response, expected_returns, exploitability, nash_conv
from parl_like.algorithms.games.cfr import CFR, CFRPlus
from parl_like.algorithms.games.mccfr import ExternalSampling, OutcomeSampling

__all__ = ["CFR", "CFRPlus", "ExternalSampling", "OutcomeSampling", "best_response", "expected_returns", "exploitability",
           "nash_conv"]

"""Monte Carlo tree search, for algorithms that look ahead.

`tree` has the compiled trees, with the formulas; `plain` the same trees in plain Python.
"""

from parl_like.algorithms.search.tree import SearchTree

__all__ = ["SearchTree"]

"""Tables and exact methods, in NumPy: one number or row for each state.

`dynamic_programming` solves a known model, and needs no robot. The others are algorithms of a task: `temporal_difference` and
`traces`, `monte_carlo`, `prediction` of a given policy, `planning`, `bandits`, `psrl`.
"""

from parl_like.algorithms.tables.dynamic_programming import model_of, policy_evaluation, policy_iteration, value_iteration

__all__ = ["model_of", "policy_evaluation", "policy_iteration", "value_iteration"]

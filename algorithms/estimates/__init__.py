"""Estimates of what a policy is worth, by data that another one has made: fitted values, and weighted returns."""

from parl_like.algorithms.estimates.fqe import FQE
from parl_like.algorithms.estimates.importance import importance_sampling

__all__ = ["FQE", "importance_sampling"]

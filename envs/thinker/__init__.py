"""Thinker: the augmented MDP, in which an agent imagines K − 1 steps in a tree before each real one (arXiv 2307.14993)."""

"""Thinker: a robot that learns a world model and learns to plan with it (Chung et al. 2023, arXiv 2307.14993).

Two tasks. `plan` is an actor-critic that acts in the augmented MDP: it looks at a search tree, and chooses what to imagine next,
when to go back to the root, and what to do. `model` imagines, learns from what the environments really do, and serves the trees
of all agents. `planning: perfect` lets the environments themselves say where an action leads; `planning: none` is the same
actor-critic without a tree.

`config` what can be set · `build` the tasks and the robot · `agent` who plans · `make` the interface of Thinker's own package ·
`ray` one model for several clients · `view` pictures of plans.
"""

from parl_like.robots.thinker.agent import ThinkerAgent
from parl_like.robots.thinker.build import build
from parl_like.robots.thinker.config import Config
from parl_like.robots.thinker.view import play

__all__ = ["Config", "ThinkerAgent", "build", "play"]

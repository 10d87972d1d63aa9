"""Sokoban: compiled boards, gymnasium environments, levels, a level generator and a solver.

    env = gymnasium.make("parl_like.envs.sokoban:Sokoban-v0")
    envs = gymnasium.make_vec("Sokoban-v0", 64, vectorization_mode="vector_entry_point")    # once this package is imported

Importing this package registers the ids `Sokoban-v0`, `Sokoban-test-v0`, `Sokoban-medium-v0`, `Sokoban-hard-v0` with gymnasium.
"""

from parl_like.envs.sokoban._sokoban import Boards
from parl_like.envs.sokoban.env import SokobanEnv, register
from parl_like.envs.sokoban.levels import LevelError, Levels, Solution, solve
from parl_like.envs.sokoban.sprites import SPRITES
from parl_like.envs.sokoban.vector import SokobanVectorEnv

__all__ = ["SPRITES", "Boards", "LevelError", "Levels", "SokobanEnv", "SokobanVectorEnv", "Solution", "register", "solve"]

register()

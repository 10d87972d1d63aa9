"""Sokoban: compiled boards, gymnasium environments, levels, a level generator and a solver.

    env = gymnasium.make("parl_like.envs:Sokoban-v0")
    envs = gymnasium.make_vec("parl_like.envs:Sokoban-v0", 64, vectorization_mode="vector_entry_point")
"""

from parl_like.envs.sokoban._sokoban import Boards
from parl_like.envs.sokoban.env import SokobanEnv
from parl_like.envs.sokoban.levels import LevelError, Levels, Solution, solve
from parl_like.envs.sokoban.sprites import SPRITES
from parl_like.envs.sokoban.vector import SokobanVectorEnv

__all__ = ["SPRITES", "Boards", "LevelError", "Levels", "SokobanEnv", "SokobanVectorEnv", "Solution", "solve"]

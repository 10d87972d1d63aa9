"""Environments: `make_env` and `make_vector_env` build most. Importing any of them makes gymnasium know `Sokoban-v0`,
`Sokoban-test-v0`, `Sokoban-medium-v0`, `Sokoban-hard-v0`, `Recall-v0`, `DeepSea-v0`, `BitFlip-v0`, `TwoStep-v0`, `Plane-v0`,
the tables `RandomWalk-v0`, `DynaMaze-v0`, `FourRooms-v0`, `CombinationLock-v0`, `NChain-v0`, `RiverSwim-v0`,
`BlackjackTable-v0` and `Testbed-v0`, and `Atari-v0` and `MinAtar-v0` with the option `game`."""

if __name__ != "parl_like.envs":
    raise ImportError(f"this folder is the package parl_like.envs; it was imported as {__name__!r}")

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from parl_like.envs.make import make_env as make_env
    from parl_like.envs.vector import make_vector_env as make_vector_env

_HOMES = {"make_env": "make", "make_vector_env": "vector"}

for _id, _kind in (("Sokoban-v0", "train"), ("Sokoban-test-v0", "test"), ("Sokoban-medium-v0", "medium"),
                   ("Sokoban-hard-v0", "hard")):
    gymnasium.register(_id, "parl_like.envs.sokoban.env:SokobanEnv",
                       vector_entry_point="parl_like.envs.sokoban.vector:SokobanVectorEnv",
                       kwargs={"kind": _kind})
gymnasium.register("Recall-v0", "parl_like.envs.recall:Recall")
gymnasium.register("MinAtar-v0", "parl_like.envs.minatar:MinAtar", kwargs={"game": "breakout"})
gymnasium.register("DeepSea-v0", "parl_like.envs.deep_sea:DeepSea")
gymnasium.register("BitFlip-v0", "parl_like.envs.bit_flip:BitFlip")
gymnasium.register("TwoStep-v0", "parl_like.envs.two_step:two_step")
gymnasium.register("RandomWalk-v0", "parl_like.envs.tabular:RandomWalk")
gymnasium.register("DynaMaze-v0", "parl_like.envs.textbook:Maze", max_episode_steps=2000)
gymnasium.register("FourRooms-v0", "parl_like.envs.four_rooms:FourRooms", max_episode_steps=1000)
gymnasium.register("CombinationLock-v0", "parl_like.envs.combination_lock:CombinationLock")
gymnasium.register("Plane-v0", "parl_like.envs.plane:Plane", max_episode_steps=30)
gymnasium.register("NChain-v0", "parl_like.envs.textbook:NChain", max_episode_steps=1000)
gymnasium.register("RiverSwim-v0", "parl_like.envs.textbook:RiverSwim", max_episode_steps=20)
gymnasium.register("BlackjackTable-v0", "parl_like.envs.textbook:BlackjackTable")
gymnasium.register("Testbed-v0", "parl_like.envs.textbook:Testbed")
gymnasium.register("Atari-v0", "parl_like.envs.atari:Atari", kwargs={"game": "breakout"})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parl_like.envs' has no attribute {name!r}")
    return getattr(_import_module(f"parl_like.envs.{_HOMES[name]}"), name)

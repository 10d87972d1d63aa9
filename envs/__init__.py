"""Environments. Importing any of them makes gymnasium know `Sokoban-v0`, `Sokoban-test-v0`, `Sokoban-medium-v0` and `Sokoban-hard-v0`."""

if __name__ != "parl_like.envs":
    raise ImportError(f"this folder is the package parl_like.envs; it was imported as {__name__!r}")

import gymnasium

for _id, _kind in (("Sokoban-v0", "train"), ("Sokoban-test-v0", "test"), ("Sokoban-medium-v0", "medium"), ("Sokoban-hard-v0", "hard")):
    gymnasium.register(_id, "parl_like.envs.sokoban.env:SokobanEnv", vector_entry_point="parl_like.envs.sokoban.vector:SokobanVectorEnv",
                       kwargs={"kind": _kind})

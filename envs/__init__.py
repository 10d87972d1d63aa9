"""Environments. Importing any of them makes gymnasium know `Sokoban-v0`, `Sokoban-test-v0`, `Sokoban-medium-v0`, `Sokoban-hard-v0`, and
`Atari-v0` with the option `game`."""

if __name__ != "parl_like.envs":
    raise ImportError(f"this folder is the package parl_like.envs; it was imported as {__name__!r}")

import gymnasium

for _id, _kind in (("Sokoban-v0", "train"), ("Sokoban-test-v0", "test"), ("Sokoban-medium-v0", "medium"), ("Sokoban-hard-v0", "hard")):
    gymnasium.register(_id, "parl_like.envs.sokoban.env:SokobanEnv", vector_entry_point="parl_like.envs.sokoban.vector:SokobanVectorEnv",
                       kwargs={"kind": _kind})
gymnasium.register("Atari-v0", "parl_like.envs.atari:Atari", kwargs={"game": "breakout"})

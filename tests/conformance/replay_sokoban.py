"""Replays recorded Sokoban games: replay_sokoban.py TRACES.json LEVELS_DIR

TRACES.json is a list of {"file": level file below LEVELS_DIR, "level": index in the file, "action", "reward", "done",
"truncated": one value a step, "final_grid": size² tile codes}, the step counter starting at 0. Prints how many steps and final
grids differ; exits 1 if any does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from parl_like.envs.sokoban import SPRITES, Boards, Levels

SHOWN = 20  # differences that are printed


def replay(game: dict[str, Any], folder: Path) -> tuple[int, int, list[str]]:
    """Returns (differing steps, whether the final grid differs, the first differences in words)."""
    levels = Levels.load(folder / game["file"])
    boards = Boards(1, levels.size, levels.packed, SPRITES)
    boards.reset(level=game["level"], counter=0)
    rew, terminated, truncated = np.zeros(1), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    steps = list(zip(game["action"], game["reward"], game["done"], game["truncated"], strict=True))
    differing, words = 0, []
    for t, (action, *expected) in enumerate(steps):
        boards.step(np.array([action], np.int64), rew, terminated, truncated)
        got = [float(rew[0]), bool(terminated[0] or truncated[0]), bool(truncated[0])]
        if abs(got[0] - expected[0]) > 1e-4 or got[1:] != [bool(flag) for flag in expected[1:]]:
            differing += 1
            words.append(f"step {t + 1}: reward, done, truncated are {got}; recorded {expected}")
    grid = boards.tiles(0).reshape(-1).tolist()
    if grid != list(game["final_grid"]):
        words.append(f"final grid is {grid}; recorded {game['final_grid']}")
    return differing, int(grid != list(game["final_grid"])), words


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("levels", type=Path)
    options = parser.parse_args(argv)
    games = json.loads(options.traces.read_text(encoding="utf-8"))
    steps = grids = shown = 0
    for i, game in enumerate(games):
        try:
            differing, grid, words = replay(game, options.levels)
        except (KeyError, OSError, TypeError, ValueError) as error:
            differing, grid, words = len(game.get("action", ())), 1, [f"cannot be replayed: {type(error).__name__}: {error}"]
        steps, grids = steps + differing, grids + grid
        for word in words[: SHOWN - shown]:
            shown += 1
            print(f"game {i}, {game.get('file')} level {game.get('level')}: {word}")
    print(f"{steps} of {sum(len(game.get('action', ())) for game in games)} steps differ, {grids} of {len(games)} final grids")
    return int(steps + grids > 0)


if __name__ == "__main__":
    raise SystemExit(main())

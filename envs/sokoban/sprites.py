"""The ten tiles as 8×8 pixels, drawn from letters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_COLOURS = {
    "m": (92, 84, 78), "b": (150, 96, 66), "d": (118, 72, 50),  # mortar, brick, its shadow
    "f": (222, 214, 196), "g": (206, 197, 178),  # floor, its grain
    "t": (204, 46, 58), "T": (240, 150, 140),  # target, its middle
    "h": (245, 190, 30), "k": (48, 44, 40),  # danger stripes
    "w": (176, 122, 44), "W": (226, 172, 84), "n": (112, 74, 24),  # wood, lit wood, edge
    "s": (72, 132, 62), "S": (126, 194, 104), "N": (38, 84, 34),  # the same of a box that is home
    "c": (38, 78, 168), "p": (214, 148, 104), "i": (24, 30, 60),  # coat, face, boots and hair
}
_WALL = "bbbmbbbb dddmdddd mmmmmmmm bmbbbbbm dmdddddm mmmmmmmm bbbmbbbb dddmdddd"
_FLOOR = "ffffffff ffgfffff ffffffff ffffffgf ffffffff fgffffff ffffffff ffffgfff"
_TARGET = "ffffffff fftttfff ftTTTtff ftTTTtff ftTTTtff fftttfff ffffffff ffffffff"
_DANGER = "hkkhhkkh kkhhkkhh khhkkhhk hhkkhhkk hkkhhkkh kkhhkkhh khhkkhhk hhkkhhkk"
_BOX = "nnnnnnnn nWwwwwWn nwWwwWwn nwwWWwwn nwwWWwwn nwWwwWwn nWwwwwWn nnnnnnnn"
_PLAYER = "..iiii.. ..pppp.. ..pipi.. .cccccc. .pccccp. ..cccc.. ..i..i.. .ii..ii."


def _pixels(letters: str) -> NDArray[np.uint8]:
    """[8, 8, 3]; a point is black and meant to be seen through."""
    return np.array([[_COLOURS.get(letter, (0, 0, 0)) for letter in row] for row in letters.split()], np.uint8)


def _over(top: str, ground: str) -> NDArray[np.uint8]:
    """[8, 8, 3]: the ground where `top` has points."""
    clear = np.array([[letter == "." for letter in row] for row in top.split()])
    return np.where(clear[..., None], _pixels(ground), _pixels(top))


def _draw() -> NDArray[np.uint8]:
    home = _BOX.translate(str.maketrans("wWn", "sSN"))
    corners = _BOX.replace("nnnnnnnn", ".nnnnnn.")  # the stripes of danger look out below a box on it
    tiles = [
        _pixels(_WALL), _pixels(_FLOOR), _pixels(_BOX), _pixels(home), _over(_PLAYER, _FLOOR), _over(_PLAYER, _TARGET),
        _pixels(_TARGET), _pixels(_DANGER), _over(corners, _DANGER.replace("k", "h")), _over(_PLAYER, _DANGER),
    ]
    return np.ascontiguousarray(np.stack(tiles).transpose(0, 3, 1, 2))


SPRITES: NDArray[np.uint8] = _draw()
"""[10, 3, 8, 8] uint8: an RGB image for each tile code, channels first. Read-only."""
SPRITES.flags.writeable = False

"""Pictures of episodes, and the one writer of GIF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parl_like.spec import Array
from parl_like.stages import Hook

WAY_OUT = ("give play an environment that renders 'rgb_array' (env=), or the robot a factory that takes the mode: "
           "`def make(render_mode=None): return MyEnv(render_mode=render_mode)`")


class NotDrawable(ValueError):
    """An environment does not draw itself."""


class Film(Hook):
    """`pictures` of an episode, [H, W, 3] uint8 each, from its reset on; of a vector environment those of its first one."""

    def __init__(self) -> None:
        self.pictures: list[Array] = []

    def post_act(self, agent: Any) -> None:
        self.pictures.append(picture_of(agent.env))

    pre_episode = post_act


def picture_of(env: Any) -> Array:
    """What `env.render()` gives now, the first of several: [H, W, 3] or [H, W], uint8.

    Raises:
        NotDrawable: the environment does not draw itself.
    """
    name = str(getattr(env, "unwrapped", env))
    try:
        given = env.render()
    except Exception as error:
        raise NotDrawable(f"{name} cannot be drawn, its render() raised {type(error).__name__}: {error}; {WAY_OUT}") from error
    if isinstance(given, (tuple, list)) and given:
        given = given[0]
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim not in (2, 3):
        what = f"{given.shape} {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        mode = getattr(env, "render_mode", None)
        raise NotDrawable(f"{name} cannot be drawn: expected render() to give a picture (height, width, 3) uint8, got {what} "
                         f"(its render_mode is {mode!r}); {WAY_OUT}")
    return given.copy()


def write_gif(path: str | Path, pictures: Sequence[Any], frames_per_second: float) -> None:
    """Writes an animated GIF that repeats for ever.

    Args:
        pictures: At least one: arrays [H, W, 3] or [H, W] uint8, or images of Pillow.
        frames_per_second: A GIF counts hundredths of a second, and viewers slow down what is below two, so 50 is the most.
    """
    from PIL import Image

    first, *rest = [Image.fromarray(p) if isinstance(p, np.ndarray) else p for p in pictures]
    first.save(path, save_all=True, append_images=rest, duration=10 * max(2, round(100 / frames_per_second)), loop=0)

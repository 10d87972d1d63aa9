"""Films of episodes, with words below their pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parl_like.environment.factory import FILM_S, FILM_WIDTH, EnvSource, Film, NotDrawable, drawable, is_made, write_gif
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Array

LINE, MARGIN = 18, 6


def captioned(pictures: Sequence[Array], texts: Sequence[Sequence[str]]) -> list[Any]:
    """The pictures, [H, W, 3] or [H, W] uint8, as images of Pillow with each one's lines of text below; all have one size."""
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(13)
    most = max(map(len, texts), default=0)
    out = []
    for picture, lines in zip(pictures, texts, strict=True):
        image = Image.fromarray(np.ascontiguousarray(picture)).convert("RGB")
        factor = -(-FILM_WIDTH // image.width)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        page = Image.new("RGB", (image.width, image.height + most * LINE + 2 * MARGIN), "white")
        page.paste(image, (0, 0))
        draw = ImageDraw.Draw(page)
        for i, line in enumerate(lines):
            draw.text((MARGIN, image.height + MARGIN + i * LINE), line, fill="black", font=font)
        out.append(page)
    return out


def filmed(path: str | Path, source: Any, watch: Callable[[Film, EnvSource], float]) -> float:
    """Film what `watch` plays and write the film at `path`; return the episode's return.

    Args:
        watch: Plays an episode of an environment before a hook, and returns its return.

    Raises:
        NotDrawable: the environment does not draw itself.
    """
    film = Film()
    try:
        total = watch(film, source if is_made(source) else drawable(source))
    except AgentFailed as error:
        if isinstance(error.__cause__, NotDrawable):
            raise error.__cause__ from None
        raise
    write_gif(path, captioned(film.pictures, film.texts), film.rate, FILM_S)
    return total

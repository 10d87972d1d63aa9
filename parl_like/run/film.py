"""Words below the pictures of a film."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parl_like.values.spec import Array

WIDTH = 320
"""Pixels that a picture has at least in a film; smaller ones are enlarged by a whole factor, so that words fit below."""
LINE, MARGIN = 18, 6


def captioned(pictures: Sequence[Array], texts: Sequence[Sequence[str]]) -> list[Any]:
    """The pictures, [H, W, 3] or [H, W] uint8, as images of Pillow with each one's lines of text below; all have one size."""
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(13)
    most = max(map(len, texts), default=0)
    out = []
    for picture, lines in zip(pictures, texts, strict=True):
        image = Image.fromarray(np.ascontiguousarray(picture)).convert("RGB")
        factor = -(-WIDTH // image.width)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        page = Image.new("RGB", (image.width, image.height + most * LINE + 2 * MARGIN), "white")
        page.paste(image, (0, 0))
        draw = ImageDraw.Draw(page)
        for i, line in enumerate(lines):
            draw.text((MARGIN, image.height + MARGIN + i * LINE), line, fill="black", font=font)
        out.append(page)
    return out

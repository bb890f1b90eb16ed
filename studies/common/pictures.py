"""Pictures of the documentation, as small as the eye allows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled._utils.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_picture(figure: Figure, path: Path) -> None:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", backend="agg")
    write_whole(path, small_png(stream.getvalue()))


def small_png(content: bytes) -> bytes:
    """Return a PNG with a palette: charts have few colours, and edges between them that 256 are enough for."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        # Without dithering, so that surfaces stay even.
        few = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, format="PNG", optimize=True)
    return stream.getvalue()

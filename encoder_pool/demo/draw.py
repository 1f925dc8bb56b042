"""Patch embeddings as colours: their three principal components, laid over the photo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SIDE = 320
"""Pixels of a picture in the drawing."""
OPACITY = 0.65


def draw(photos: Sequence[Image.Image], patches: Sequence[Floats], seen: float) -> Image.Image:
    """One column a photo: what the tower saw of it, and the same under its patches' colours.

    patches  per photo (h, w, D): embeddings on their grid
    seen     share of a photo's shorter side that the tower sees: the side of a centred square
    """
    sheet = Image.new("RGB", (SIDE * len(photos), SIDE * 2))
    for column, (photo, colours) in enumerate(zip(photos, principal_colours(patches), strict=True)):
        view = centre(photo, seen)
        overlay = Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        sheet.paste(view, (column * SIDE, 0))
        sheet.paste(Image.blend(view, overlay, OPACITY), (column * SIDE, SIDE))
    return sheet


def principal_colours(patches: Sequence[Floats]) -> list[Pixels]:
    """Per photo (h, w, 3): the patches' first three principal components over all photos, as RGB.

    The components are those of the centred patches of all photos together, so that like patches have
    like colours across photos. Each is cut at its 2nd and 98th percentile and stretched to 0..255.
    """
    rows = np.concatenate([grid.reshape(-1, grid.shape[-1]) for grid in patches])
    centred = rows - rows.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    scores = centred @ axes[:3].T
    low, high = np.percentile(scores, [2, 98], axis=0)
    colours = (np.clip((scores - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    parts = np.split(colours, np.cumsum([grid.shape[0] * grid.shape[1] for grid in patches])[:-1])
    return [part.reshape(*grid.shape[:2], 3) for part, grid in zip(parts, patches, strict=True)]


def centre(photo: Image.Image, share: float) -> Image.Image:
    """The centred square of this share of the shorter side, as a picture of the drawing's size."""
    side = min(photo.size) * share
    left, top = (photo.width - side) / 2, (photo.height - side) / 2
    box = (left, top, left + side, top + side)
    return photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)

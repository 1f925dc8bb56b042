"""Checkpoint folders that hold processors alone, and items for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from encoder_pool.core import Media, Modality
from encoder_pool.media.video import Pixels
from tests.media.clips import film
from tests.odd_media import picture

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN3_IMAGE = {"patch_size": 16, "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}, **HALF}


def folder(
    path: Path, model_type: str, image: dict[str, Any] | None = None, video: dict[str, Any] | None = None
) -> Path:
    """A checkpoint of processors alone."""
    files = {
        "config.json": {"model_type": model_type},
        "preprocessor_config.json": image,
        "video_preprocessor_config.json": video,
    }
    for name, content in files.items():
        if content is not None:
            (path / name).write_text(json.dumps(content))
    return path


def qwen3_folder(path: Path, video: dict[str, Any] | None = None) -> Path:
    return folder(path, "qwen3_vl", QWEN3_IMAGE, video or {})


def png(pixels: Pixels, modality: Modality = Modality.IMAGE) -> Media:
    return Media(modality, picture("PNG", pixels), "input[4]")


def movie(frames: Pixels, rate: int = 2) -> Media:
    return Media(Modality.VIDEO, film(frames, rate=rate), "input[4]")

"""Configurations that the package carries: published sizes, and a made-up tiny one, without weights.

Each is a checkpoint folder with the published numbers, and of those only what a tower reads, under the keys
of transformers 5. Sources: config.json and the processors' files of Qwen2-VL-7B-Instruct,
Qwen2.5-VL-7B-Instruct, Qwen3-VL-8B-Instruct, Qwen3.5-9B and Kimi-K2.5. `qwen2.5-vl-tiny` is made up: a tower
of Qwen2.5-VL in 1.3 million weights.
"""

from __future__ import annotations

from pathlib import Path

SCHEME = "config:"
_FOLDER = Path(__file__).parent / "configs"


def names() -> tuple[str, ...]:
    """What may follow `config:`."""
    return tuple(sorted(folder.name for folder in _FOLDER.iterdir()))


def folder(checkpoint: str) -> Path:
    """The folder of `config:NAME`. Raises ValueError for an unknown name, with the known ones."""
    name = checkpoint.removeprefix(SCHEME)
    if name not in names():
        known = ", ".join(f"{SCHEME}{known}" for known in names())
        raise ValueError(f"model.checkpoint '{checkpoint}' is unknown; configurations: {known}")
    return _FOLDER / name

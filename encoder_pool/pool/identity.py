"""What makes two items the same: a key of everything that decides an item's rows.

SHA-256 over fields that each say their length first, so that no two lists of fields read the same: the
model's section of the configuration (name, checkpoint, type, quantization, kernel), the version of its
files, the item's modality, and its bytes as they were sent. A processor's settings are in those files. Limits
are in no field: they refuse items and change none. Knows nothing of the cache.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from encoder_pool.config import ModelConfig
from encoder_pool.core import Media

if TYPE_CHECKING:
    from hashlib import _Hash

LENGTH_BYTES = 8
"""Of the little-endian length in front of each field."""


class Identity:
    """Gives the items of one model their keys. Safe in threads."""

    def __init__(self, model: ModelConfig, weights: str) -> None:
        """Of a model's section, and what `weights_version` says of its checkpoint."""
        self._of_model = hashlib.sha256()
        _add(self._of_model, model.model_dump_json().encode())
        _add(self._of_model, weights.encode())

    def key(self, media: Media) -> bytes:
        """The item's 32 bytes. Reads all of it, a millisecond a megabyte or so: call it in a thread."""
        digest = self._of_model.copy()
        _add(digest, media.modality.value.encode())
        _add(digest, media.data)
        return digest.digest()


def weights_version(checkpoint: Path, load_format: str) -> str:
    """Hex SHA-256 that changes with the files of a checkpoint folder.

    JSON files count with what is in them: the model's and its processors' configurations. Weights count with
    name, size and time of change: to read gigabytes would slow every start, their headers hold the shapes,
    which are the same for every fine-tune, and keys live no longer than the process, so that times need not
    agree between hosts. Dummy weights are in no file; they follow from config.json.
    """
    digest = hashlib.sha256()
    for file in sorted(each for each in checkpoint.iterdir() if each.is_file()):
        is_read = file.suffix == ".json"
        if not is_read and load_format == "dummy":
            continue
        status = file.stat()
        _add(digest, file.name.encode())
        _add(digest, file.read_bytes() if is_read else f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _add(digest: _Hash, field: bytes) -> None:
    digest.update(len(field).to_bytes(LENGTH_BYTES, "little"))
    digest.update(field)

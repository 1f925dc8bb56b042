"""FFmpeg as this package opens it: one demuxer, the options that bound it, and a limit on what it allocates.

Knows nothing of what is in a file.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Mapping

import av
import av.error
from av.container import InputContainer

from encoder_pool.media.effort import Effort

# An MP4 of 33 KB can claim a table of 80 million packets, for which FFmpeg allocates 3 GB. Its only limit for
# this is one of the process, on a single block; the table of ten hours of AAC stays below it.
_MAX_BLOCK_BYTES = 64 * 1024 * 1024
ctypes.CDLL(av.error.__file__).av_max_alloc(ctypes.c_size_t(_MAX_BLOCK_BYTES))


class _Watched(io.BytesIO):
    """A file in memory that is not read on beyond its effort: opening it may be most of the work."""

    def __init__(self, data: bytes, effort: Effort) -> None:
        super().__init__(data)
        self._effort = effort

    def read(self, size: int | None = -1, /) -> bytes:
        self._effort.check()
        return super().read(size)


def open_file(data: bytes, demuxer: str, options: Mapping[str, str], effort: Effort) -> InputContainer:
    """The file, read by this demuxer alone. To be closed. Raises FFmpeg's errors, and what `effort` does."""
    file = _Watched(data, effort)
    return av.open(file, "r", format=demuxer, options=dict(options), metadata_errors="ignore")

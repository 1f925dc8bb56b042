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

# An MP4 of 33 KB can claim a table of 80 million packets, for which FFmpeg allocates 3 GB. Its only limit for
# this is one of the process, on a single block; the table of ten hours of AAC stays below it.
_MAX_BLOCK_BYTES = 64 * 1024 * 1024
ctypes.CDLL(av.error.__file__).av_max_alloc(ctypes.c_size_t(_MAX_BLOCK_BYTES))


def open_file(data: bytes, demuxer: str, options: Mapping[str, str]) -> InputContainer:
    """The file, read by this demuxer alone. To be closed. Raises FFmpeg's errors."""
    return av.open(io.BytesIO(data), "r", format=demuxer, options=dict(options), metadata_errors="ignore")

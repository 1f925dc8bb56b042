"""Memory without a name that can be handed to another process, reserved before it is used."""

from __future__ import annotations

import errno
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt
import psutil

PAGE = mmap.PAGESIZE


def whole_pages(num_bytes: int) -> int:
    """The size, rounded up to pages."""
    return -(-num_bytes // PAGE) * PAGE


def reserve(name: str, num_bytes: int, flags: int = 0) -> int:
    """The descriptor of a new `memfd` with all its pages. Raises OSError if the host cannot hold them.

    A memfd has no size limit: to reserve more than there is would wake the kernel's OOM killer instead.
    """
    available = psutil.virtual_memory().available
    if num_bytes > available:
        sizes = f"{num_bytes >> 20} MiB, {available >> 20} MiB are available"
        raise OSError(errno.ENOSPC, f"a {name} needs {sizes}")
    fd = os.memfd_create(f"encoder-pool-{name}", os.MFD_CLOEXEC | flags)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


class Segment:
    """Memory that this process writes and another will own; it goes when nobody has it open or mapped."""

    def __init__(self, num_bytes: int) -> None:
        """Of whole pages. Raises OSError if the host cannot hold them."""
        self.num_bytes = whole_pages(num_bytes)
        self.fd = reserve("reply", self.num_bytes)
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._memory: mmap.mmap | None = mmap.mmap(self.fd, self.num_bytes, flags=flags)

    def close(self) -> None:
        """Give it up, now rather than with the last reference. Arrays over it stay valid."""
        self._close_fd()
        self._memory = None

    def array(
        self, offset: int, shape: tuple[int, int], dtype: np.dtype[np.generic]
    ) -> npt.NDArray[np.generic]:
        """The array of this shape that starts there, writable."""
        assert self._memory is not None, "it is closed"
        return np.frombuffer(self._memory, dtype, shape[0] * shape[1], offset).reshape(shape)

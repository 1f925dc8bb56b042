"""The consumer's side: a handle -> memory that it holds for as long as somebody uses it.

Takes descriptors and bytes from the replica, never objects: nothing is unpickled.
"""

from __future__ import annotations

import mmap
import os
import socket
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Self

from encoder_pool.delivery.handle import RELEASED, Handle

TAKE_TIMEOUT_S = 10.0
"""A replica that lives answers at once."""


class HandleGoneError(Exception):
    """The memory cannot be had: the replica has ended or given it up, or it is on another host."""


class Lease:
    """That this process holds memory of a replica.

    It ends by itself once the memory is used no more, i.e. when the last array over it is collected.
    """

    def __init__(self, memory: mmap.mmap, connection: socket.socket) -> None:
        # The memory itself is not held here: it lives as long as the arrays over it.
        self._end = weakref.finalize(memory, _release, connection)

    @property
    def is_held(self) -> bool:
        """Whether the replica still counts the memory."""
        return self._end.alive

    def release(self) -> None:
        """Tell the replica that it need not count the memory any more. Arrays over it stay valid."""
        self._end()

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled item has its rows by value, and no lease."""
        return (type(None), ())

    def __enter__(self) -> Self:
        """The lease itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it."""
        self.release()


def take(handle: Handle) -> tuple[mmap.mmap, Lease]:
    """The memory of a handle, mapped and writable, and the lease on it. Raises HandleGoneError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        memory = _receive(connection, handle)
    except BaseException:
        connection.close()
        raise
    return memory, Lease(memory, connection)


def _receive(connection: socket.socket, handle: Handle) -> mmap.mmap:
    connection.settimeout(TAKE_TIMEOUT_S)
    try:
        connection.connect(f"\0{handle.socket}")
        connection.send(handle.token.encode("ascii"))
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise HandleGoneError(f"the replica's socket does not answer ({error})") from error
    if not descriptors:
        raise HandleGoneError("the replica has given the memory up, or gives it to its own user only")
    try:
        if os.fstat(descriptors[0]).st_size < handle.num_bytes:
            raise HandleGoneError(f"the memory is smaller than {handle.num_bytes} bytes")
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(descriptors[0], handle.num_bytes, flags=flags)
    finally:
        os.close(descriptors[0])


def _release(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.send(RELEASED)

"""What a replica and the processes that prepare its media say to each other.

A message is a head in JSON, a zero byte, and the bytes that it is about: the file one way, the prepared array
the other. Bytes that are too many for a message come in memory without a name, whose descriptor comes along.
Nothing is unpickled: a process that has met a hostile file is not believed more than the file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, Grid, Modality, PreparedItem, Source
from encoder_pool.delivery.memory import reserve
from encoder_pool.errors import PoolError

WITHIN_BYTES = 3 << 16
"""What travels in a message: the file of a small photo, and the pixels of one. Copying that is as quick as
mapping it."""
MESSAGE_BYTES = WITHIN_BYTES + (1 << 14)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
UP = b"up"
"""The head of a process's first message: it can take files from now on."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a process is started with."""

    adapter: str
    checkpoint: Path
    limits: LimitsConfig


@dataclass(frozen=True, slots=True)
class Order:
    """A file to be prepared, in so many threads at most."""

    modality: Modality
    param: str
    threads: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A `PreparedItem` without its array, which is of this shape and dtype, and the seconds it took."""

    modality: Modality
    grid: Grid
    cost: Cost
    tokens: int
    digest: str
    source: Source
    shape: tuple[int, ...]
    dtype: str
    seconds: float

    @staticmethod
    def of(item: PreparedItem, seconds: float) -> Ready:
        """The item, and what it took."""
        described = item.modality, item.grid, item.cost, item.tokens, item.digest, item.source
        return Ready(*described, item.data.shape, item.data.dtype.str, seconds)

    def item(self, data: npt.NDArray[np.uint8]) -> PreparedItem:
        """With its array again, which is over these bytes."""
        array = data.view(np.dtype(self.dtype)).reshape(self.shape)
        return PreparedItem(
            modality=self.modality,
            data=array,
            grid=self.grid,
            cost=self.cost,
            tokens=self.tokens,
            digest=self.digest,
            source=self.source,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A `PoolError` of this class."""

    kind: str
    message: str
    code: str
    param: str | None

    @staticmethod
    def of(error: PoolError) -> Refused:
        """The error."""
        return Refused(type(error).__name__, error.message, error.code, error.param)

    @property
    def error(self) -> PoolError:
        """The error again. StopIteration for a class that is none of ours."""
        kind = next(kind for kind in PoolError.__subclasses__() if kind.__name__ == self.kind)
        return kind(self.message, code=self.code, param=self.param)


SETTING: TypeAdapter[Setting] = TypeAdapter(Setting)
ORDER: TypeAdapter[Order] = TypeAdapter(Order)
OUTCOME: TypeAdapter[Ready | Refused] = TypeAdapter(Ready | Refused)


class Message(NamedTuple):
    """A head, and the bytes that it is about."""

    head: bytes
    data: npt.NDArray[np.uint8]


def send(connection: socket.socket, head: bytes, data: memoryview) -> None:
    """Send a message. OSError if the other end is gone, or the host has no memory for it."""
    if len(data) <= min(WITHIN_BYTES, connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2):
        connection.sendmsg([head, b"\0", data])
        return
    fd = reserve("prepared item", len(data), flags=os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], written)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        socket.send_fds(connection, [head, b"\0"], [fd])
    finally:
        os.close(fd)


def receive(connection: socket.socket) -> Message | None:
    """The next message; None once the other end is gone. ValueError for memory that may still change."""
    message, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
    if not message:
        return None
    head, _, within = message.partition(b"\0")
    if not fds:
        return Message(head, np.frombuffer(within, np.uint8))
    (fd,) = fds
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("memory that is handed over is sealed")
        return Message(head, np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8))
    finally:
        os.close(fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that carry such messages whole, as far as the host lets its buffers grow."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
    return ends

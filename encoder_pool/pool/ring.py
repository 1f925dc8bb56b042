"""Memory that a replica and its shards share: packs go in, embeddings come out, nothing is copied by Ray.

A ring is one `memfd` cut into slots; each slot has an input and an output region. It has no name, so no
kill can leak it; it is not bound by a container's /dev/shm; and a restarted shard attaches to it again
through `/proc/PID/fd/N`. (`multiprocessing.shared_memory` on Python 3.11 and 3.12 unlinks a segment for
everyone when one attacher exits.) Its pages are reserved at creation: a host without memory fails there,
with ENOSPC, and not later with SIGBUS.

Knows nothing of items, towers or Ray. Who may touch a slot when is its users' agreement.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from encoder_pool.delivery.memory import reserve, whole_pages


@dataclass(frozen=True, slots=True)
class RingAddress:
    """How another process of the same host opens a ring."""

    pid: int
    fd: int
    slots: int
    input_bytes: int
    output_bytes: int


class Ring:
    """A fixed number of slots, each with an input and an output region of bytes."""

    def __init__(self, fd: int, address: RingAddress) -> None:
        self.address = address
        self._fd = fd
        self._memory = mmap.mmap(fd, _ring_bytes(address))

    @classmethod
    def create(cls, slots: int, input_bytes: int, output_bytes: int) -> Ring:
        """A new ring of this process. Raises OSError (ENOSPC) if the host cannot hold it."""
        input_bytes, output_bytes = whole_pages(input_bytes), whole_pages(output_bytes)
        fd = reserve("ring", slots * (input_bytes + output_bytes))
        return cls(fd, RingAddress(os.getpid(), fd, slots, input_bytes, output_bytes))

    @classmethod
    def attach(cls, address: RingAddress) -> Ring:
        """The ring of another process, which must be alive. Raises FileNotFoundError if it is not."""
        fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", os.O_RDWR | os.O_CLOEXEC)
        return cls(fd, address)

    def input(self, slot: int) -> npt.NDArray[np.uint8]:
        """The slot's input region, writable."""
        return self._region(self._start(slot), self.address.input_bytes)

    def output(self, slot: int) -> npt.NDArray[np.uint8]:
        """The slot's output region, writable."""
        return self._region(self._start(slot) + self.address.input_bytes, self.address.output_bytes)

    def close(self) -> None:
        """Give up the descriptor; the memory goes when the last view of it does, in every process."""
        os.close(self._fd)

    def _start(self, slot: int) -> int:
        assert 0 <= slot < self.address.slots, f"no slot {slot}"
        return slot * (self.address.input_bytes + self.address.output_bytes)

    def _region(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._memory, np.uint8, size, start)


def _ring_bytes(address: RingAddress) -> int:
    return address.slots * (address.input_bytes + address.output_bytes)

"""Where the ranks of one worker find each other: two files of the replica's memory, made for them alone.

They have no names, as the ring has none: nothing is left behind by a kill, and nobody else finds them. Each
set of ranks has files of its own, so that a straggler of an earlier set meets nobody. Knows nothing of what
is written into them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file of this host's memory, which other processes open while the one that made it keeps it.

    inode  which file it is: when it is closed, another may get its number
    """

    pid: int
    fd: int
    inode: int

    @classmethod
    def create(cls, size: int) -> MemoryFile:
        """So many zero bytes."""
        fd = os.memfd_create("encoder-pool-ranks", os.MFD_CLOEXEC)
        os.truncate(fd, size)
        return cls(os.getpid(), fd, os.fstat(fd).st_ino)

    def open(self) -> int:
        """A descriptor of the calling process. Raises FileNotFoundError if the file is there no more."""
        path = f"/proc/{self.pid}/fd/{self.fd}"
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_ino != self.inode:
            os.close(fd)
            raise FileNotFoundError(f"{path} is another file by now")
        return fd

    def path(self) -> Path:
        """A path by which the calling process may open it, as long as that lives. Raises as `open`."""
        return Path(f"/proc/{os.getpid()}/fd/{self.open()}")

    def close(self) -> None:
        """By the process that made it. Whoever has opened it keeps it."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks of a worker share.

    group  through which they are joined
    board  on which they say what they are about to do
    """

    count: int
    group: MemoryFile
    board: MemoryFile

    @classmethod
    def of(cls, count: int, board_bytes: int) -> Meeting:
        """A new one, of this process."""
        return cls(count, MemoryFile.create(0), MemoryFile.create(board_bytes))

    def close(self) -> None:
        """By the process that made it: no rank comes any more."""
        self.group.close()
        self.board.close()


@dataclass(frozen=True, slots=True)
class Place:
    """A rank, from 0, of those of a meeting."""

    rank: int
    meeting: Meeting

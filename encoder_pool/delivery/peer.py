"""Who is at the other end of a socket of this host, as the kernel has it: no word of theirs."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The numbers of the process that connected, of its user and of its group."""

    process: int
    user: int
    group: int

    @staticmethod
    def of(connection: socket.socket) -> Peer:
        """Source: SO_PEERCRED in unix(7)."""
        return Peer(
            *_CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
        )

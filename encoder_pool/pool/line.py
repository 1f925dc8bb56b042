"""The line between a replica and a shard: a pack is told on a socket, and its reply comes back on it.

A call of a Ray actor takes each of the two a millisecond and more, a word on a socket a tenth of that. There
is a connection for each slot of the ring, on which request and reply take turns. The replica listens under a
name that the kernel forgets with it, takes connections of one process only, and sees at once when that ends.
Knows nothing of Ray, nor of what is in a pack.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from pydantic import TypeAdapter

from encoder_pool.delivery.peer import Peer
from encoder_pool.pool.messages import PackReply, PackRequest

REQUEST: TypeAdapter[PackRequest] = TypeAdapter(PackRequest)
REPLY: TypeAdapter[PackReply] = TypeAdapter(PackReply)
MESSAGE_BYTES = 1 << 17
"""Of the longest message: an item takes a hundred, a rung's counters fifty."""
DONE, FAILED = b"+", b"-"
"""What an answer begins with: a reply follows, or an error's text."""
BACKLOG = 128
"""Anybody on the host may connect, and is let go; the shard is to find room all the same."""

Run = Callable[[PackRequest], PackReply]

logger = logging.getLogger(__name__)


class LineDown(Exception):
    """The other end is gone, or was given up."""


class RunFailed(Exception):
    """The other end is alive and could not run the pack."""


class Line:
    """The replica's end, one connection a slot."""

    def __init__(self, slots: int) -> None:
        """Listening, with nobody connected."""
        self.address = f"encoder-pool-line-{secrets.token_hex(16)}"
        self._slots = slots
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(BACKLOG)
        self._connections: list[socket.socket] = []
        self._asked: set[int] = set()
        self._is_accepting = False
        self._is_closed = False

    async def accept(self, pid: int) -> None:
        """Wait until the process has connected once for each slot; whoever else connects is let go.

        Raises LineDown if it is closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._is_accepting = True
        try:
            while len(self._connections) < self._slots:
                connection, _ = await loop.sock_accept(self._listener)
                connection.setblocking(False)
                if Peer.of(connection).process == pid and not self._is_closed:
                    self._connections.append(connection)
                else:
                    connection.close()
                if self._is_closed:
                    raise LineDown("it was closed before the other end came")
        finally:
            self._is_accepting = False
            self._listener.close()

    async def ask(self, request: PackRequest) -> PackReply:
        """What the other end makes of the pack. Raises RunFailed, or LineDown."""
        answer = await self._answer(request.slot, REQUEST.dump_json(request))
        if not answer:
            raise LineDown("the other end has closed it")
        if answer[:1] == FAILED:
            raise RunFailed(answer[1:].decode())
        return REPLY.validate_json(answer[1:])

    def close(self) -> None:
        """Let go of the other end; whoever waits for an answer, or asks from now on, gets LineDown."""
        self._is_closed = True
        if self._is_accepting:
            self._wake()
        else:
            self._listener.close()
        for slot, connection in enumerate(self._connections):
            if slot not in self._asked:
                connection.close()
            else:
                connection.shutdown(socket.SHUT_RDWR)  # its waiter is woken, and closes it

    def _wake(self) -> None:
        """Whoever accepts: by another connection, or by those that fill the backlog."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waker, suppress(BlockingIOError):
            waker.setblocking(False)
            waker.connect(f"\0{self.address}")

    async def _answer(self, slot: int, request: bytes) -> bytes:
        """Nothing where the other end is gone. A request that is given up takes its connection with it."""
        connection = self._connections[slot]
        self._asked.add(slot)
        answer = b""
        try:
            connection.send(request)
            answer = await asyncio.get_running_loop().sock_recv(connection, MESSAGE_BYTES)
        except OSError as error:
            raise LineDown(str(error)) from error
        finally:
            self._asked.discard(slot)
            if not answer or self._is_closed:
                connection.close()
        return answer


def answer(address: str, slots: int, run: Run) -> None:
    """Connect to a replica once for each slot, and from now on run what it asks for, in threads."""
    for slot in range(slots):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(f"\0{address}")
        threading.Thread(target=_answer, args=(connection, run), name=f"line-{slot}", daemon=True).start()


def _answer(connection: socket.socket, run: Run) -> None:
    with connection:
        while message := connection.recv(MESSAGE_BYTES):
            connection.send(_outcome(message, run))


def _outcome(message: bytes, run: Run) -> bytes:
    try:
        return DONE + REPLY.dump_json(run(REQUEST.validate_json(message)))
    except Exception as error:  # whatever it is, it is the pack's: the replica is told
        logger.warning("a pack failed", exc_info=True)
        return FAILED + f"{type(error).__name__}: {error}".encode()[: MESSAGE_BYTES - 1]

"""The replica's side: what memory it has promised, who holds it, and when it is given up.

reserved  being written
promised  its handle is in a reply; swept if nobody has come for it after `claim_s`
held      a consumer has come for it; until it is released, or swept because the consumer died

All of it counts against `max_bytes`, so that consumers that are slow to release cannot fill the host. What a
living consumer has mapped cannot be taken from it: to forget its lease would hide the memory, not free it.
Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field

from encoder_pool.config import DeliveryConfig
from encoder_pool.delivery.handle import RELEASED, SECRET_BYTES, Handle
from encoder_pool.delivery.memory import Segment, whole_pages
from encoder_pool.delivery.peer import Peer
from encoder_pool.errors import TooLarge, Unavailable

logger = logging.getLogger(__name__)

LEASE_BYTES = 64 * 1024
"""What a lease counts for at least, so that the bound on bytes bounds descriptors, too."""
RETRY_AFTER_S = 1.0
SAY_TOKEN_S = 5.0
"""A consumer that connects shows its token at once."""
ACCEPT_AGAIN_S = 0.5
"""Before the next try, when no connection can be accepted, e.g. because there are no descriptors left."""


@dataclass(slots=True)
class LeaseCounters:
    """Leases since the replica started.

    promised  handles that went into replies
    released  those that their consumer released
    swept     those that nobody came for in time, and those whose consumer died
    refused   requests for which there was no memory: they got a body, or an error
    """

    promised: int = 0
    released: int = 0
    swept: int = 0
    refused: int = 0


@dataclass(eq=False, slots=True)
class Promise:
    """Memory of one reply, until a consumer has it."""

    segment: Segment
    handle: Handle
    counted_bytes: int
    timer: asyncio.TimerHandle | None = field(default=None)


class Leases:
    """All leases of a replica."""

    def __init__(self, config: DeliveryConfig) -> None:
        """With none. `start` before the first is promised."""
        self.counters = LeaseCounters()
        self.bytes = 0
        self.held = 0
        self._config = config
        self._name = f"encoder-pool-{secrets.token_hex(SECRET_BYTES)}"
        self._promised: dict[str, Promise] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen for consumers, if there may be any. Needs the running event loop."""
        if not self._config.is_on:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.setblocking(False)
        listener.bind(f"\0{self._name}")
        listener.listen(socket.SOMAXCONN)
        self._accepting = asyncio.create_task(self._accept(listener))
        self._accepting.add_done_callback(lambda _: listener.close())

    def stop(self) -> None:
        """Give up what nobody has come for. What consumers hold stays theirs."""
        for task in (self._accepting, *self._tasks):
            if task is not None:
                task.cancel()
        for promise in list(self._promised.values()):
            self._sweep(promise)

    def check(self) -> None:
        """Raise what ended the listener: nothing should, and nobody would be handed anything."""
        if self._accepting is not None and self._accepting.done():
            self._accepting.result()

    @asynccontextmanager
    async def reserved(self, num_bytes: int) -> AsyncIterator[Promise]:
        """Memory for a reply: promised to its consumer when the block ends well, else given back.

        Raises TooLarge for more than there ever is, Unavailable for more than there is now.
        """
        counted = max(whole_pages(num_bytes), LEASE_BYTES)
        self._check_room(counted)
        with ExitStack() as undo:
            self.bytes += counted
            undo.callback(self._give_back, counted)
            segment = await asyncio.to_thread(_segment, num_bytes)
            undo.callback(segment.close)
            token = secrets.token_hex(SECRET_BYTES)
            handle = Handle(self._name, token, segment.num_bytes, self._config.claim_s)
            promise = Promise(segment, handle, counted)
            yield promise
            self._promise(promise)
            undo.pop_all()

    def describe(self) -> dict[str, int]:
        """Bound, content and counters, for `/info`."""
        return {
            "max_bytes": self._config.max_bytes,
            "bytes": self.bytes,
            "open": len(self._promised) + self.held,
            "held": self.held,
        } | asdict(self.counters)

    def _check_room(self, counted: int) -> None:
        limit = self._config.max_bytes
        if counted > limit:
            raise TooLarge(
                f"the reply needs {counted} bytes of shared memory; a replica shares at most {limit} "
                "(delivery.max_bytes); ask for a body",
                code="request_too_large",
            )
        if self.bytes + counted > limit:
            raise Unavailable(
                f"{self.bytes} bytes of shared memory are not released yet and this reply needs {counted}; "
                f"the limit is {limit} (delivery.max_bytes)",
                code="no_shared_memory",
                retry_after_s=RETRY_AFTER_S,
            )

    def _promise(self, promise: Promise) -> None:
        loop = asyncio.get_running_loop()
        promise.timer = loop.call_later(self._config.claim_s, self._sweep, promise)
        self._promised[promise.handle.token] = promise
        self.counters.promised += 1

    def _give_back(self, counted: int) -> None:
        self.bytes -= counted

    def _sweep(self, promise: Promise) -> None:
        """Nobody came for it."""
        self._claim(promise.handle.token)
        promise.segment.close()
        self._give_back(promise.counted_bytes)
        self.counters.swept += 1

    def _claim(self, token: str) -> Promise | None:
        promise = self._promised.pop(token, None)
        if promise is not None and promise.timer is not None:
            promise.timer.cancel()
        return promise

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("no consumer can be let in: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            task = loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        """One consumer: its token for the memory, and then its release."""
        with connection:
            if not self._may_take(connection):
                return
            promise = await self._promise_of(connection)
            if promise is None:
                return
            self.held += 1
            was_released = False
            try:
                was_released = await _hand_over(connection, promise.segment)
            finally:
                self.held -= 1
                self._give_back(promise.counted_bytes)
                self.counters.released += was_released
                self.counters.swept += not was_released

    def _may_take(self, connection: socket.socket) -> bool:
        if self._config.other_users:
            return True
        user = Peer.of(connection).user
        return bool(user == os.geteuid())

    async def _promise_of(self, connection: socket.socket) -> Promise | None:
        """What the consumer has come for; None if it shows no token that is good."""
        try:
            async with asyncio.timeout(SAY_TOKEN_S):
                shown = await asyncio.get_running_loop().sock_recv(connection, 4 * SECRET_BYTES)
        except (OSError, TimeoutError):
            return None
        return self._claim(shown.decode("ascii", "replace"))


async def _hand_over(connection: socket.socket, segment: Segment) -> bool:
    """Give the memory away and wait until it is released; whether the consumer said so, or died."""
    try:
        socket.send_fds(connection, [b"\0"], [segment.fd])
        segment.close()  # it is the consumer's now
        word = await asyncio.get_running_loop().sock_recv(connection, len(RELEASED))
    except OSError:
        return False
    finally:
        segment.close()
    return word == RELEASED


def _segment(num_bytes: int) -> Segment:
    try:
        return Segment(num_bytes)
    except OSError as error:
        raise Unavailable(
            f"the host has no shared memory for the reply ({error.strerror})",
            code="no_shared_memory",
            retry_after_s=RETRY_AFTER_S,
        ) from error

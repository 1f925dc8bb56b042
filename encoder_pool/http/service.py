"""What the HTTP routes ask of a pool, so that they can be built and tested without Ray or torch.

A request is admitted before its body is read, and its reservation grows with what the routes read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from encoder_pool.config import PoolConfig
from encoder_pool.core import Embedding, Media, Modality
from encoder_pool.delivery.handle import Handle

if TYPE_CHECKING:
    from encoder_pool.metrics.meter import Meter


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time in the pool went, in seconds: stages that follow each other.

    Where items differ, from the queue on, they are those of the item that came back last.

    identify_s  until all were looked up in the cache
    prepare_s   until all were decoded and resized
    queue_s     until a worker had the item
    copy_s      into the ring and out of it
    encode_s    at the worker, behind the pack in front of it; copies included for an item in pieces
    """

    identify_s: float = 0.0
    prepare_s: float = 0.0
    queue_s: float = 0.0
    copy_s: float = 0.0
    encode_s: float = 0.0


class Sharing(Enum):
    """Whether a request's rows go into shared memory: if there is room, or else nowhere."""

    NEVER = "never"
    IF_ROOM = "if_room"
    ALWAYS = "always"


class Shared(NamedTuple):
    """Shared memory that holds the rows of an answer.

    handle   for its consumer
    offsets  where each item's rows start, in bytes
    """

    handle: Handle
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The answer to one request: one embedding per item, in the caller's order.

    shared  where its rows are, if they are in shared memory
    """

    embeddings: tuple[Embedding, ...]
    timings: Timings
    shared: Shared | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a pool can encode now.

    state  a word for people: "ready", "capturing", "restarting"
    """

    state: str
    workers_ready: int
    workers_total: int

    @property
    def is_ready(self) -> bool:
        """Whether a captured worker is there to encode."""
        return self.workers_ready > 0


class Reservation(Protocol):
    """What a request holds of the pool's memory."""

    def add_bytes(self, num_bytes: int) -> None:
        """Hold so many bytes more. Raises Overloaded or TooLarge."""
        ...

    def add_tokens(self, tokens: int) -> None:
        """Hold so many tokens more. Raises Overloaded or TooLarge."""
        ...

    def hand_over(self, num_bytes: int, tokens: int) -> Callable[[], None]:
        """Let go of so much of it: it stays held until what is returned is called, once."""
        ...


class PoolService(Protocol):
    """One model's pool, as the routes see it."""

    config: PoolConfig
    meter: Meter

    @property
    def modalities(self) -> frozenset[Modality]:
        """What the model takes."""
        ...

    def admit(self) -> AbstractContextManager[Reservation]:
        """Let a request in for the length of a `with` block, before its body is read.

        Raises Overloaded or Unavailable.
        """
        ...

    async def encode(
        self,
        media: Sequence[Media],
        reservation: Reservation,
        deadline_s: float,
        sharing: Sharing = Sharing.NEVER,
    ) -> Encoded:
        """Encode all items or raise one PoolError. Cancelling the call drops what is still queued."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Whether it can encode now, without asking anyone."""
        ...

    def info(self) -> Mapping[str, Any]:
        """Effective configuration, ladder, limits and counters, as JSON."""
        ...

    def metrics(self) -> bytes:
        """The metrics of all replicas in Prometheus' text format. Raises Unavailable."""
        ...

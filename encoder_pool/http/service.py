"""What the HTTP routes ask of a pool, so that they can be built and tested without Ray or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from encoder_pool.config import PoolConfig
from encoder_pool.core import Embedding, Media


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds; the largest of its items where they differ."""

    prepare_s: float = 0.0
    queue_s: float = 0.0
    encode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Encoded:
    """The answer to one request: one embedding per item, in the caller's order."""

    embeddings: tuple[Embedding, ...]
    timings: Timings


class Readiness(Protocol):
    """Whether a pool can encode now."""

    @property
    def is_ready(self) -> bool:
        """Whether a captured worker is there to encode."""
        ...

    @property
    def state(self) -> str:
        """One word or short phrase for people: "ready", "capturing", "restarting"."""
        ...

    @property
    def workers_ready(self) -> int:
        """Workers that can take a pack."""
        ...

    @property
    def workers_total(self) -> int:
        """Workers the replica owns."""
        ...


class PoolService(Protocol):
    """One model's pool, as the routes see it."""

    config: PoolConfig

    async def encode(self, media: Sequence[Media], *, deadline_s: float | None, body_bytes: int) -> Encoded:
        """Encode all items or raise one PoolError. Cancelling the call drops what is still queued."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Whether it can encode now, without asking anyone."""
        ...

    def info(self) -> Mapping[str, Any]:
        """Effective configuration, ladder, limits and counters, as JSON."""
        ...

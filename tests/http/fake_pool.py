"""A pool in memory: embeddings made from each item's digest, failures and delays on request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np

from encoder_pool.config import (
    DeliveryConfig,
    LadderConfig,
    LimitsConfig,
    ModelConfig,
    PoolConfig,
    QueueConfig,
)
from encoder_pool.core import DType, Embedding, Grid, Media, Modality, Part, Source
from encoder_pool.delivery.leases import Leases
from encoder_pool.errors import Overloaded
from encoder_pool.http.routes import build_app
from encoder_pool.http.service import Encoded, Readiness, Sharing, Timings
from encoder_pool.metrics.families import exposition, families_of
from encoder_pool.metrics.meter import Meter
from encoder_pool.pool.places import places_for

WIDTH = 4
GRID = Grid(1, 2, 2)
PARTS = (Part("merger", 1), Part("deepstack.0", WIDTH - 1))
PREFIX = 1


def fake_config(
    limits: LimitsConfig | None = None,
    queue: QueueConfig | None = None,
    dtype: DType = DType.FLOAT32,
    delivery: DeliveryConfig | None = None,
) -> PoolConfig:
    return PoolConfig(
        model=ModelConfig(
            name="fake", aliases=("fake-alias",), adapter="fake", checkpoint="builtin:fake", dtype=dtype
        ),
        ladder=LadderConfig(min=1, max=4),
        limits=limits or LimitsConfig(),
        queue=queue or QueueConfig(),
        delivery=delivery or DeliveryConfig(),
    )


def embedding_of(media: Media, dtype: DType = DType.FLOAT32) -> Embedding:
    """Finite rows that depend on the bytes alone."""
    digest = hashlib.sha256(media.data).hexdigest()
    tokens = PREFIX + GRID.t * GRID.h * GRID.w
    numbers = np.random.default_rng(int(digest[:16], 16)).standard_normal((tokens, WIDTH), np.float32)
    if dtype is DType.BFLOAT16:
        rows = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    else:
        rows = numbers.astype(dtype.storage)
    return Embedding(rows, dtype, media.modality, GRID, PREFIX, PARTS, digest, Source("PNG", 2, 2, 0.0))


class FakeReservation:
    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes

    def add_bytes(self, num_bytes: int) -> None:
        self.bytes += num_bytes
        if self.bytes > self.most_bytes:
            raise Overloaded("the replica is full", retry_after_s=1.5)

    def add_tokens(self, tokens: int) -> None:
        raise AssertionError("tokens are the pool's own business")

    def hand_over(self, num_bytes: int, tokens: int) -> Callable[[], None]:
        raise AssertionError("what is held is the pool's own business")


class FakePool:
    """A PoolService; set `failure`, `delay_s` or `state` to change what it does next.

    It shares memory within `with pool.sharing()`.
    """

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or fake_config()
        self.modalities = frozenset({Modality.IMAGE, Modality.AUDIO})
        self.meter = Meter()
        self.failure: BaseException | None = None
        self.delay_s = 0.0
        self.state = Readiness("ready", 1, 1)
        self.calls: list[tuple[tuple[Media, ...], int, float]] = []
        """Items, bytes reserved and deadline of every call to `encode`."""
        self.admitted = 0
        self.cancelled = 0
        self.most_bytes = 1 << 30
        self.leases = Leases(self.config.delivery)

    @contextmanager
    def admit(self) -> Iterator[FakeReservation]:
        self.admitted += 1
        try:
            yield FakeReservation(self.most_bytes)
        finally:
            self.admitted -= 1

    @contextmanager
    def sharing(self) -> Iterator[None]:
        self.leases.start()
        try:
            yield
        finally:
            self.leases.stop()

    async def encode(
        self,
        media: Sequence[Media],
        reservation: Any,
        deadline_s: float,
        sharing: Sharing = Sharing.NEVER,
    ) -> Encoded:
        self.calls.append((tuple(media), reservation.bytes, deadline_s))
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        dtype = self.config.model.dtype
        embeddings = [embedding_of(one, dtype) for one in media]
        shapes = [(len(each.rows), WIDTH) for each in embeddings]
        async with places_for(self.leases, sharing, shapes, dtype.storage) as places:
            timings = Timings(0.001, 0.002, 0.003, 0.004, 0.005)
            return Encoded(await places.fill(embeddings), timings, places.shared)

    @property
    def readiness(self) -> Readiness:
        return self.state

    def info(self) -> Mapping[str, Any]:
        return {
            "model": self.config.model.name,
            "limits": self.config.limits.model_dump(),
            "delivery": self.leases.describe(),
        }

    def metrics(self) -> bytes:
        return exposition(families_of(self.meter.registry.collect()), model=self.config.model.name)


def client_of(pool: FakePool, *, behind_serve: bool = False, root_path: str = "") -> httpx.AsyncClient:
    """A client that talks to the application in this process."""
    app = build_app(pool, behind_serve=behind_serve)
    transport = httpx.ASGITransport(app, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url="http://pool")

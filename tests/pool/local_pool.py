"""A pool without Ray: the real shard in a thread, a toy tower with faults on demand, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError
from encoder_pool.http.service import Encoded
from encoder_pool.pool.dispatch import Equipped
from encoder_pool.pool.identity import Identity
from encoder_pool.pool.pool import Pool
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.sizing import size_pool
from encoder_pool.pool.worker import Worker
from encoder_pool.towers.adapter import adapter_class
from tests.pool.local_preparers import LocalPreparers
from tests.pool.local_shard import LocalShard
from tests.toy import expected, toy

PATIENT_S = 1e6
"""A deadline that nobody misses, however much time passes."""

HASTY_S = 1000.0
"""A deadline that a test misses by `pass_time` and no machine by itself."""

HELD = 255
"""The value of the toy that `encoding` sends; no other toy of a test has it."""


def config(**sections: Any) -> PoolConfig:
    """Without a cache, unless that is asked for: most tests count what the tower does."""
    document: dict[str, Any] = {
        "model": {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"},
        "ladder": {"min": 1, "max": 8},
        "queue": {"deadline_s": 10},
        "cache": {"max_bytes": 0},
        "shard": {"pack_timeout_s": PATIENT_S},
    }
    return PoolConfig.model_validate({**document, **sections})


@asynccontextmanager
async def running(settings: PoolConfig) -> AsyncIterator[tuple[Pool, list[LocalShard]]]:
    adapter = adapter_class(settings.model.adapter)(Path())
    sizing = size_pool(settings, adapter)
    shards: list[LocalShard] = []

    def equip() -> Equipped:
        ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)

        def start_shard() -> LocalShard:
            shards.append(LocalShard(settings, Path(), sizing.ladder, ring.address))
            return shards[-1]

        return Equipped(Worker(settings.shard, start_shard), ring)

    workers = [equip() for _ in range(settings.replica.workers)]
    for worker, _ in workers:
        await worker.start()
    identity, loop = Identity(settings.model, "toy"), asyncio.get_running_loop()
    preparers = LocalPreparers(lambda: pool.adapter, settings.limits)
    pool = Pool(
        settings, adapter, sizing, workers, preparers, identity, lambda: loop.time()
    )  # as `pass_time` has it
    pool.start()
    try:
        yield pool, shards
    finally:
        pool.stop()


async def encode(pool: Pool, *items: bytes, deadline_s: float = PATIENT_S) -> Encoded:
    media = [Media(Modality.IMAGE, data, f"input[{at}]") for at, data in enumerate(items)]
    with pool.admit() as reservation:
        return await pool.encode(media, reservation, deadline_s)


async def attempt(pool: Pool, *items: bytes, deadline_s: float = PATIENT_S) -> Encoded | PoolError:
    try:
        return await encode(pool, *items, deadline_s=deadline_s)
    except PoolError as error:
        return error


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; a test that waits in vain fails."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def pass_time(seconds: float) -> None:
    """Make it so much later for everything on this event loop: its timers, and the pool's clock."""
    loop = asyncio.get_running_loop()
    earlier = loop.time
    loop.time = lambda: earlier() + seconds  # type: ignore[method-assign]


async def encoding(pool: Pool, shards: list[LocalShard], item: bytes = toy(HELD)) -> asyncio.Task[Encoded]:
    """A request whose pack the shard has begun, and is at until it is let go."""
    shards[0].hold()
    task = asyncio.create_task(encode(pool, item))
    await until(lambda: shards[0].holds_pack)
    return task


def assert_rows(encoded: Encoded | PoolError, *values: int) -> None:
    assert isinstance(encoded, Encoded)
    for embedding, value in zip(encoded.embeddings, values, strict=True):
        np.testing.assert_array_equal(embedding.rows, expected(value))

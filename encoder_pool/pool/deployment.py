"""The Serve deployment of a model: a pool as a replica, with its shards beside it in one placement group.

A replica is ready (its constructor returns) only when its shards are captured. `check_health` sees every
shard and the dispatch loops, not only the event loop; once no worker is left it fails with Ray's own actor
error, which Serve answers by replacing the replica at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import ActorDiedError
from ray.util.placement_group import get_current_placement_group

from encoder_pool.auth import load_keys
from encoder_pool.config import PoolConfig
from encoder_pool.errors import PoolError
from encoder_pool.http.routes import build_app
from encoder_pool.pool.calls import Answer, Call, answer
from encoder_pool.pool.dispatch import Equipped
from encoder_pool.pool.identity import Identity, weights_version
from encoder_pool.pool.pool import Pool
from encoder_pool.pool.preparers import Preparers
from encoder_pool.pool.preparing import Setting
from encoder_pool.pool.ranks import start_ranks
from encoder_pool.pool.ray_ledger import RayLedger
from encoder_pool.pool.ray_shard import start_ray_shard
from encoder_pool.pool.reporting import Place
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.scaling import WorkReport
from encoder_pool.pool.sizing import size_pool
from encoder_pool.pool.worker import Worker
from encoder_pool.towers.adapter import adapter_class
from encoder_pool.weights import ensure

FIRST_SHARD_BUNDLE = 1
"""Bundle 0 of the replica's placement group is the replica itself."""
SWITCH_INTERVAL_S = 0.0005
"""A thread that copies comes back for Python's lock once an item, and under load the event loop gives it up
only when it must: after 5 ms by Python's own choice."""


class EncoderPool:
    """One replica of a model's pool."""

    async def __init__(self, config: PoolConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._keys = load_keys(config.auth)
        checkpoint = ensure(config.model.checkpoint)
        adapter = adapter_class(config.model.adapter)(checkpoint)
        sizing = size_pool(config, adapter)
        context = serve.get_replica_context()
        group = get_current_placement_group()
        assert group is not None, "build_app gives every replica a placement group"

        def equip(number: int) -> Equipped:
            ranks = config.model.tensor_parallel_size
            ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
            start_shard = partial(
                start_ray_shard,
                f"{context.app_name}/{context.replica_id.unique_id}",
                config,
                checkpoint,
                sizing.ladder,
                ring.address,
                group,
                FIRST_SHARD_BUNDLE + number * ranks,
            )
            return Equipped(Worker(config.shard, partial(start_ranks, ranks, start_shard)), ring)

        workers = [equip(number) for number in range(config.replica.workers)]
        preparers = Preparers(Setting(config.model.adapter, checkpoint, config.limits), config.replica)
        preparers.start()
        await asyncio.gather(*(worker.start() for worker, _ in workers))
        await preparers.wait_up()
        identity = Identity(config.model, weights_version(checkpoint, config.model.load_format))
        # A pool that never has more than one replica sees itself, without a process for it.
        ledger = RayLedger(context.app_name) if config.scaling.max_replicas > 1 else None
        node_id = ray.get_runtime_context().get_node_id()
        place = Place(context.replica_id.unique_id, node_id, ray.util.get_node_ip_address())
        self._pool = Pool(
            config, adapter, sizing, workers, preparers, identity, time.monotonic, ledger, place
        )
        self._pool.start()
        self._report = WorkReport(self._pool.admission, self._pool.workers, time.monotonic)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP application; Serve asks for it once the constructor is through."""
        return build_app(self._pool, keys=self._keys, behind_serve=True)

    async def call(self, call: Call) -> Answer | PoolError:
        """A request through the Serve handle; `encoder_pool.PoolHandle` sends it."""
        return await answer(self._pool, call)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's question how much there is to do."""
        return self._report()

    async def check_health(self) -> None:
        """Serve's question whether to keep this replica."""
        await self._pool.check()
        if not self._pool.has_worker:
            raise ActorDiedError

    async def __del__(self) -> None:
        """Serve calls this when a replica has drained."""
        if hasattr(self, "_pool"):
            await self._pool.reporter.say_goodbye()
            self._pool.stop()


deployment: Any = serve.deployment(serve.ingress()(EncoderPool), name="EncoderPool")
"""The class as Serve deploys it."""

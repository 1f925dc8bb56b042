"""A pool's ledger as a Ray actor of a name that every replica of the application knows.

Whichever replica misses it creates it. It is owned by that replica, not detached: with the last replica's
process it is gone too, however that ended, so that no shutdown has to find it. When its owner goes and others
stay, they create the next within a second and bring it what they have seen (see `ledger`). It outlasts
rollouts, unlike Serve's own deployment actors, of which every version of an application has one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from encoder_pool.pool.ledger import PoolLedger, ReplicaReport, View

LEDGERS = "encoder-pool-ledgers"
"""The namespace of the actors; they have the names of their applications."""


class _LedgerActor:
    """The book in a process of its own."""

    def __init__(self) -> None:
        self._ledger = PoolLedger(time.monotonic)

    def push(self, report: ReplicaReport, seen: View | None) -> View:
        return self._ledger.push(report, seen)


class RayLedger:
    """Ledger over the application's actor."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._actor: Any = None
        self._has_told = False

    async def push(self, report: ReplicaReport, seen: View | None) -> View:
        """See Ledger. What was seen goes with the first report to an actor; that it has then."""
        if self._actor is None:
            # It asks Ray's control service, which may be slow: not on the event loop.
            await asyncio.to_thread(self._find_or_create)
        try:
            view: View = await self._actor.push.remote(report, None if self._has_told else seen)
        except RayActorError:
            self._actor = None
            raise
        self._has_told = True
        return view

    def _find_or_create(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor_class: Any = ray.remote(num_cpus=0)(_LedgerActor)
        options = {"name": self._application, "namespace": LEDGERS, "get_if_exists": True}
        # Kept at once, whoever still waits for it: an actor ends when its creator drops it.
        self._has_told = False
        self._actor = actor_class.options(scheduling_strategy=here, **options).remote()

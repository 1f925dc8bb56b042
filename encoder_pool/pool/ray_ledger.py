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
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from encoder_pool.pool.ledger import LedgerLost, PoolLedger, ReplicaReport, View

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

    async def push(self, report: ReplicaReport, seen: View | None) -> View:
        """See Ledger."""
        try:
            if self._actor is None:
                # It asks Ray's control service, which may be slow: not on the event loop. The first report to
                # an actor brings what was seen, the others need not.
                actor = await asyncio.to_thread(self._find_or_create)
                view: View = await actor.push.remote(report, seen)
                self._actor = actor
            else:
                view = await self._actor.push.remote(report, None)
        except (RayError, ValueError) as error:
            if isinstance(error, RayActorError):
                self._actor = None
            raise LedgerLost(str(error)) from error
        return view

    def _find_or_create(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor_class: Any = ray.remote(num_cpus=0)(_LedgerActor)
        return actor_class.options(
            name=self._application, namespace=LEDGERS, get_if_exists=True, scheduling_strategy=here
        ).remote()

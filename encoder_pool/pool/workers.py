"""The workers of a replica: each is fed by a dispatcher of its own, all of them from one queue.

A pack is formed for whichever is free. While one is being brought up again the others go on, and what it had
is theirs; one that gives up is missed. Only when no worker is left the queue is closed. Knows nothing of
HTTP or Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from encoder_pool.core import Rung
from encoder_pool.graphs.counters import Counters
from encoder_pool.pool.batcher import Batcher
from encoder_pool.pool.counters import NOTHING_RUN
from encoder_pool.pool.dispatch import Dispatcher
from encoder_pool.pool.messages import ShardReport
from encoder_pool.pool.worker import Worker, WorkerGone


class Workers:
    """One or more, started, and what they are together."""

    def __init__(self, dispatchers: Sequence[Dispatcher], batcher: Batcher) -> None:
        """Of the dispatchers that take from the batcher."""
        self.dispatchers = tuple(dispatchers)
        self._batcher = batcher

    def start(self) -> None:
        """Begin to take packs. Needs the running event loop."""
        for dispatcher in self.dispatchers:
            dispatcher.start(self._lose)

    def stop(self) -> None:
        """Take no more packs and end all workers."""
        for dispatcher in self.dispatchers:
            dispatcher.stop()

    async def check(self) -> None:
        """Raise what ended a loop; have every worker replace a shard that does not answer."""
        for dispatcher in self.dispatchers:
            dispatcher.check()
        await asyncio.gather(*(worker.check() for worker in self._workers))

    @property
    def total(self) -> int:
        """Workers that there are, or were meant to be."""
        return len(self.dispatchers)

    @property
    def ready(self) -> int:
        """Workers that can take a pack now."""
        return sum(worker.is_ready for worker in self._workers)

    @property
    def slots(self) -> int:
        """Packs that may be in flight at once."""
        return sum(dispatcher.ring.address.slots for dispatcher in self.dispatchers)

    @property
    def is_any_left(self) -> bool:
        """Whether one lives, or is being brought up again."""
        return not all(worker.has_given_up for worker in self._workers)

    @property
    def state(self) -> str:
        """In a word: that of them all, "degraded" where only some are ready."""
        if 0 < self.ready < self.total:
            return "degraded"
        left = (worker.state for worker in self._workers if not worker.has_given_up)
        return next(left, self._workers[0].state)

    @property
    def report(self) -> ShardReport:
        """Of the worker with the lowest ladder: what is cut for its rungs has a rung at every worker."""
        return min((worker.report for worker in self._workers), key=_reach)

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The lowest."""
        return self.report.ladder

    @property
    def tokens_per_s(self) -> float:
        """Measured, of those that are ready; of all where none is, for they will be."""
        ready = [each.rate for each in self.dispatchers if each.worker.is_ready]
        return sum(rate.tokens_per_s for rate in ready or [each.rate for each in self.dispatchers])

    @property
    def restarts(self) -> int:
        """Shards started in another's place."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def packs_in_flight(self) -> int:
        """Packs at a worker."""
        return sum(dispatcher.packs_in_flight for dispatcher in self.dispatchers)

    @property
    def ran(self) -> Counters:
        """What all shards that there ever were have run."""
        return sum((dispatcher.runs.total for dispatcher in self.dispatchers), NOTHING_RUN)

    @property
    def shards_ran(self) -> Counters | None:
        """What the shards that run now, or ran last, have run; None before the first pack came back."""
        last = [runs for dispatcher in self.dispatchers if (runs := dispatcher.runs.last) is not None]
        return sum(last[1:], last[0]) if last else None

    @property
    def _workers(self) -> list[Worker]:
        return [dispatcher.worker for dispatcher in self.dispatchers]

    def _lose(self, gone: WorkerGone) -> None:
        """With the last worker nobody takes anything any more."""
        if not self.is_any_left:
            self._batcher.close(gone.answer)


def _reach(report: ShardReport) -> int:
    return report.ladder[-1].capacity.out_rows

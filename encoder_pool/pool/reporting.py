"""A replica reports to its pool's ledger each second, in the background, and keeps the view it gets back.

Nobody waits for the ledger: who asks for the pool is shown the last view, with its age. Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from encoder_pool.errors import Unavailable
from encoder_pool.pool.info import held, totals
from encoder_pool.pool.ledger import STALE_S, Ledger, ReplicaReport, Totals, View
from encoder_pool.pool.metering import replica_families

if TYPE_CHECKING:
    from encoder_pool.pool.pool import Pool

logger = logging.getLogger(__name__)

EVERY_S = 1.0
ANSWER_S = 3.0
"""A ledger that has not answered by then is asked again with the next report."""


class Place(NamedTuple):
    """Names of the replica, and of the Ray node and the host that it is on."""

    replica: str
    node_id: str
    host: str


ALONE = Place("this", "here", "localhost")
"""A replica that nobody else asks about."""


class Reporter:
    """Reports for one pool."""

    def __init__(self, pool: Pool, ledger: Ledger, place: Place, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._ledger = ledger
        self._place = place
        self._clock = clock
        self._reports = 0
        self._view: View | None = None
        self._seen_at = 0.0
        self._is_heard = True
        self._loop: asyncio.Task[None] | None = None

    @property
    def place(self) -> Place:
        """Who reports."""
        return self._place

    def start(self) -> None:
        """Report from now on. Needs the running event loop."""
        self._loop = asyncio.create_task(self._report_for_ever())

    def stop(self) -> None:
        """Report no more."""
        if self._loop is not None:
            self._loop.cancel()

    async def say_goodbye(self) -> None:
        """The last report: the replica leaves in order."""
        self.stop()
        await self.report(is_last=True)

    def view(self) -> View | None:
        """The pool as last heard, at its present age; None until the ledger has answered."""
        return None if self._view is None else self._view.later(self._clock() - self._seen_at)

    def fresh_view(self) -> View:
        """The view, if it is whole and no older than a live replica's report. Raises Unavailable.

        So whoever asks one replica and STALE_S later another never sees a count fall.
        """
        view = self.view()
        if view is None or not view.is_whole or self._clock() - self._seen_at > STALE_S:
            raise Unavailable("the pool's ledger has not answered lately", retry_after_s=EVERY_S)
        return view

    async def report(self, *, is_last: bool = False) -> None:
        """Report once. A ledger that does not answer is a warning, the first time."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(ANSWER_S):
                self._view = await self._ledger.push(self._summary(is_last), self._view)
        except Exception as error:  # whatever it is: the next report may get through, and no request needs it
            if self._is_heard:
                logger.warning("the pool's ledger does not answer, so that /metrics will not: %r", error)
            self._is_heard = False
        else:
            self._seen_at = asked_at
            self._is_heard = True

    async def _report_for_ever(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(EVERY_S)

    def _summary(self, is_last: bool) -> ReplicaReport:
        pool = self._pool
        self._reports += 1
        families = replica_families(pool)
        return ReplicaReport(
            **self._place._asdict(),
            number=self._reports,
            state=pool.readiness.state,
            held=held(pool),
            tokens_per_s=pool.workers.tokens_per_s,
            totals=Totals(totals(pool), tuple(family for family in families if family.only_grows)),
            gauges=tuple(family for family in families if not family.only_grows),
            is_last=is_last,
        )

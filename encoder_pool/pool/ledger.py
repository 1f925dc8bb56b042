"""One view of a pool: what its replicas report each second, kept and added up in one place.

A replica that falls silent is marked stale and later, or when it leaves in order, folded into the totals of
those that are gone, so that no sum ever falls. The ledger itself may be lost: each replica keeps the last
view it was answered with and brings it to the next ledger, which goes on from the newest of them.

Knows nothing of Ray; what time it is is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from encoder_pool.metrics.families import Family, added

STALE_S = 5.0
"""A replica that has not reported for so long is marked stale."""
GONE_S = 120.0
"""And after so long it is gone: Serve has replaced it, and no report of it can come any more."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What only grows, of one replica or of several."""

    counters: Mapping[str, int]
    families: tuple[Family, ...]

    @staticmethod
    def of(parts: Iterable[Totals]) -> Totals:
        """The sum."""
        counters: dict[str, int] = {}
        families: list[Family] = []
        for part in parts:
            for name, count in part.counters.items():
                counters[name] = counters.get(name, 0) + count
            families.extend(part.families)
        return Totals(counters, added(families))


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica says of itself.

    number      of its reports until this one; a higher one is newer
    state       of its workers, in a word
    held        requests, tokens, bytes and queued items, now
    gauges      other metrics that are of now
    is_last     whether it is leaving
    """

    replica: str
    node_id: str
    host: str
    number: int
    state: str
    held: Mapping[str, int]
    tokens_per_s: float
    totals: Totals
    gauges: tuple[Family, ...]
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A replica in a view, and the seconds since its report."""

    report: ReplicaReport
    age_s: float

    @property
    def is_stale(self) -> bool:
        """Whether what it says of now no longer holds."""
        return self.age_s > STALE_S


@dataclass(frozen=True, slots=True)
class Gone:
    """The replicas that are no more."""

    replicas: int
    totals: Totals

    def and_also(self, report: ReplicaReport) -> Gone:
        """With one more."""
        return Gone(self.replicas + 1, Totals.of((self.totals, report.totals)))


NOBODY_GONE = Gone(0, Totals({}, ()))


@dataclass(frozen=True, slots=True)
class View:
    """The pool as the ledger had it after so many reports, those to ledgers before it included.

    is_whole  whether every live replica has reported to this ledger: of one that a view from before has
              brought, the counts may be older than what it has shown itself
    """

    sequence: int
    rows: tuple[Row, ...]
    gone: Gone
    is_whole: bool

    @property
    def totals(self) -> Totals:
        """Of all replicas that ever were."""
        return Totals.of((self.gone.totals, *(row.report.totals for row in self.rows)))

    @property
    def gauges(self) -> tuple[Family, ...]:
        """Of the replicas that are there."""
        return added(family for row in self.rows if not row.is_stale for family in row.report.gauges)

    def later(self, elapsed_s: float) -> View:
        """The same view, so many seconds after it was made."""
        return replace(self, rows=tuple(replace(row, age_s=row.age_s + elapsed_s) for row in self.rows))


class Ledger(Protocol):
    """Where a replica reports to."""

    async def push(self, report: ReplicaReport, seen: View | None) -> View:
        """Report, and learn of the others. Raises whatever keeps it from that; it may be tried again.

        seen  the last view that this replica was given: a ledger that has begun anew goes on from it
        """
        ...


class PoolLedger:
    """The book itself. Calls come one after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._sequence = 0
        self._adopted = 0
        self._gone = NOBODY_GONE
        self._rows: dict[str, ReplicaReport] = {}
        self._heard_at: dict[str, float] = {}
        self._told_itself: set[str] = set()

    def push(self, report: ReplicaReport, seen: View | None) -> View:
        """See Ledger."""
        now = self._clock()
        if seen is not None and seen.sequence > self._adopted:
            self._adopt(seen, now)
        self._sequence += 1
        self._enter(report, now)
        self._told_itself.add(report.replica)
        if report.is_last:
            self._fold(report.replica)
        # Until then a newer view may still be brought, in which another sum of the gone stands.
        if now - self._begun > GONE_S:
            for replica in [each for each, at in self._heard_at.items() if now - at > GONE_S]:
                self._fold(replica)
        rows = tuple(Row(row, now - self._heard_at[replica]) for replica, row in self._rows.items())
        is_whole = all(row.is_stale or row.report.replica in self._told_itself for row in rows)
        return View(self._sequence, rows, self._gone, is_whole)

    def _adopt(self, seen: View, now: float) -> None:
        """Go on from a view of a ledger before this one, in the place of an older one."""
        told = {replica: row for replica, row in self._rows.items() if replica in self._told_itself}
        heard_at = self._heard_at
        self._rows, self._heard_at = {}, {}
        for row in seen.rows:
            self._enter(row.report, now - row.age_s)
        for replica, report in told.items():
            self._enter(report, heard_at[replica])
        self._gone = seen.gone
        self._adopted = seen.sequence
        self._sequence = max(self._sequence, seen.sequence)

    def _enter(self, report: ReplicaReport, heard_at: float) -> None:
        known = self._rows.get(report.replica)
        if known is None or known.number < report.number:
            self._rows[report.replica] = report
            self._heard_at[report.replica] = heard_at

    def _fold(self, replica: str) -> None:
        self._gone = self._gone.and_also(self._rows.pop(replica))
        del self._heard_at[replica]
        self._told_itself.discard(replica)


class LocalLedger:
    """The ledger of a pool that has one replica at most: its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._ledger = PoolLedger(clock)

    async def push(self, report: ReplicaReport, seen: View | None) -> View:
        """See Ledger."""
        return self._ledger.push(report, None)

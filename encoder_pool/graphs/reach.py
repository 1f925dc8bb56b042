"""How far up a ladder without numbers goes: to what memory and a pack's time allow, found by trying.

The tower is run at one size an octave, smallest first; what the next one takes is read off the last two, so
that nothing is run that is known to be too much. Only what grows with the rows counts: what eager spends on
launching, a captured rung does not. That is an estimate, which whoever captures the rungs verifies. Imports
no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from encoder_pool.core import Rung
from encoder_pool.graphs.ladder import NotCaptured

MIB = 1 << 20


class Probe(NamedTuple):
    """What a shape takes without being captured: milliseconds, and bytes of the device's memory."""

    ms: float
    num_bytes: int


class Prober(Protocol):
    """What tries shapes: see `LadderRunner`."""

    @property
    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""
        ...

    def probe(self, rung: Rung, clock: Callable[[], float]) -> Probe:
        """What a rung would take. Raises whatever stops it, as want of memory."""
        ...


class Bounds(NamedTuple):
    """What a rung may take at most, and what memory is left to others at least."""

    max_pack_ms: float
    reserve_bytes: int


class Reach(NamedTuple):
    """The rungs within the bounds, and those beyond them with the reason.

    is_memory_bound  whether memory, not time, stopped it
    """

    ladder: tuple[Rung, ...]
    beyond: tuple[NotCaptured, ...]
    is_memory_bound: bool


def reach(prober: Prober, ladder: Sequence[Rung], bounds: Bounds, clock: Callable[[], float]) -> Reach:
    """The lowest budgets of the ladder that the bounds allow, with all their tiers; the first one always."""
    available = prober.free_bytes - bounds.reserve_bytes
    budgets = [tuple(rungs) for _, rungs in groupby(ladder, key=lambda rung: rung.budget)]
    growth = _Growth(0.0, 0.0)
    last: tuple[int, Probe] | None = None
    failure: NotCaptured | None = None
    for rung in _octaves([rungs[-1] for rungs in budgets]):
        if growth.why_not(rung, bounds, available):
            break
        try:
            probe = prober.probe(rung, clock)
        except Exception as error:  # whatever it is, that size cannot be served
            failure = NotCaptured(rung, str(error))
            break
        growth = _Growth.between(last, (rung.capacity.patch_rows, probe))
        last = rung.capacity.patch_rows, probe
    return _split(budgets, lambda rung: _failed(rung, failure) or growth.why_not(rung, bounds, available))


class _Growth(NamedTuple):
    """What another patch row takes."""

    row_ms: float
    row_bytes: float

    @staticmethod
    def between(before: tuple[int, Probe] | None, now: tuple[int, Probe]) -> _Growth:
        """Of time, what lies between two sizes; of memory, what the larger one has."""
        rows, probe = now
        row_bytes = probe.num_bytes / rows
        if before is None:
            return _Growth(0.0, row_bytes)
        return _Growth(max(0.0, (probe.ms - before[1].ms) / (rows - before[0])), row_bytes)

    def why_not(self, rung: Rung, bounds: Bounds, available: int) -> _Reason | None:
        """What speaks against a rung, if anything does."""
        rows = rung.capacity.patch_rows
        if (needed := rows * self.row_bytes) > available:
            have = max(0, available) / MIB
            why = f"about {needed / MIB:.0f} MiB; {have:.0f} MiB are free beside ladder.reserve_bytes"
            return _Reason(why, is_memory=True)
        if (ms := rows * self.row_ms) > bounds.max_pack_ms:
            return _Reason(
                f"about {ms:.0f} ms; ladder.max_pack_ms is {bounds.max_pack_ms:g}", is_memory=False
            )
        return None


class _Reason(NamedTuple):
    why: str
    is_memory: bool


def _failed(rung: Rung, failure: NotCaptured | None) -> _Reason | None:
    if failure is None or rung.budget < failure.rung.budget:
        return None
    return _Reason(failure.why, is_memory=True)


def _octaves(rungs: Sequence[Rung]) -> Iterator[Rung]:
    """The first, and each that has at least twice the rows of the one before."""
    rows = 0
    for rung in rungs:
        if rung.capacity.patch_rows >= 2 * rows:
            rows = rung.capacity.patch_rows
            yield rung


def _split(budgets: Sequence[tuple[Rung, ...]], why_not: Callable[[Rung], _Reason | None]) -> Reach:
    count = 1
    while count < len(budgets) and why_not(budgets[count][-1]) is None:
        count += 1
    reasons = [(rung, why_not(rungs[-1])) for rungs in budgets[count:] for rung in rungs]
    beyond = tuple(NotCaptured(rung, reason.why) for rung, reason in reasons if reason)
    stopped_by = reasons[0][1] if reasons else None
    kept = tuple(rung for rungs in budgets[:count] for rung in rungs)
    return Reach(kept, beyond, stopped_by is not None and stopped_by.is_memory)

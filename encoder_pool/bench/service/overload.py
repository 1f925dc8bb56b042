"""Twice what a service can do, for a while: what it still answers, and whether its memory stays flat.

The peak is found first, as the best of the closed loops. What is not counted of the overload is as long as
the queue needs to fill, so that all the while that counts the service refuses half of what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

from encoder_pool.bench.service.loads import Bench
from encoder_pool.bench.service.measure import OVERLOAD, Subject
from encoder_pool.bench.service.processes import ServiceProcesses
from encoder_pool.bench.service.results import OverloadResult, Sighting
from encoder_pool.bench.service.soak import GROWN_BYTES, GROWN_DESCRIPTORS

Say = Callable[[str, float | None], None]

LEAST_GOODPUT = 0.9
"""Of the peak. With less, refusing costs what is not there to be given away."""


def overload(
    bench: Bench,
    processes: ServiceProcesses,
    subject: Subject,
    seconds: float,
    file: str,
    command: str,
    say: Say,
) -> OverloadResult:
    """The peak, and then twice of it for so long. Raises ValueError if nothing is answered."""
    plans = [subject.closed("closed", in_flight) for in_flight in subject.depths]
    closed = []
    for done, plan in enumerate(plans):
        say(f"{subject.name}: the peak, {plan.lanes} requests in flight", done / (len(plans) + 1))
        closed.append(bench.carry_out(plan, subject.photos, subject.own.items_s).found)
    peak = max(closed, key=lambda load: load.items_s)
    until_full_s = subject.capacity / ((OVERLOAD - 1) * peak.items_s)
    plan = replace(subject, seconds=seconds).opened("overload", OVERLOAD * peak.items_s, until_full_s)
    say(f"{subject.name}: {plan.offered:.3g} images a second", len(plans) / (len(plans) + 1))
    seen: list[Mapping[str, Sighting]] = []
    load = bench.carry_out(
        plan, subject.photos, subject.own.items_s, lambda: seen.append(processes.sight(len(seen)))
    ).found
    resident = _by_role(seen, lambda sighting: sighting.resident_bytes)
    descriptors = _by_role(seen, lambda sighting: sighting.descriptors)
    return OverloadResult(
        file=file,
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        peak=peak,
        load=load,
        goodput=load.items_s / peak.items_s,
        resident_bytes=resident,
        descriptors=descriptors,
        grown_bytes=_grown(resident),
        grown_descriptors=_grown(descriptors),
    )


def _by_role(
    seen: Sequence[Mapping[str, Sighting]], held: Callable[[Sighting], int]
) -> dict[str, tuple[int, ...]]:
    return {role: tuple(held(sighting[role]) for sighting in seen) for role in seen[0]}


def _grown(held: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """From the first quarter to the last, medians of both."""
    return {role: round(_last(each) - _last(each[::-1])) for role, each in held.items()}


def _last(each: Sequence[int]) -> float:
    """Median of the last quarter."""
    return median(each[-max(len(each) // 4, 1) :])


def failings(name: str, found: OverloadResult) -> list[str]:
    """What a service should not do, however much is asked of it."""
    told = []
    if found.goodput < LEAST_GOODPUT:
        told.append(f"{name}: overloaded it answers {found.goodput:.0%} of its peak")
    if found.load.errors:
        told.append(f"{name}: {found.load.errors} requests failed, beside {found.load.refused} refused")
    told += [
        f"{name}: the {role} grew by {grown >> 20} MiB while it was overloaded"
        for role, grown in found.grown_bytes.items()
        if grown > GROWN_BYTES
    ]
    return told + [
        f"{name}: the {role} has {grown} descriptors more than when the overload began"
        for role, grown in found.grown_descriptors.items()
        if grown > GROWN_DESCRIPTORS
    ]

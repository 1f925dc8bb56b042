"""Whether memory and descriptors stay flat over many requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from encoder_pool.bench.service.load import OK
from encoder_pool.bench.service.loads import Bench
from encoder_pool.bench.service.processes import ServiceProcesses
from encoder_pool.bench.service.results import Sighting, SoakResult

Say = Callable[[str, float | None], None]

IN_FLIGHT = 32
PARTS = 8
SETTLED = PARTS // 4
"""The sighting that the last is compared with: allocators have what they need by then."""
WARM_SHARE = 0.05
"""Requests before the first sighting, beside those that are asked for."""
GROWN_BYTES, GROWN_DESCRIPTORS = 64 << 20, 32
"""More than this is a leak."""


def soak(
    bench: Bench,
    processes: ServiceProcesses,
    photos: tuple[Path, ...],
    requests: int,
    file: str,
    command: str,
    say: Say,
) -> SoakResult:
    """So many requests, and what the service's processes hold before, in between and after."""
    say("warming up", 0.0)
    bench.send(photos, max(round(requests * WARM_SHARE), IN_FLIGHT), IN_FLIGHT)
    sightings = [processes.sight(0)]
    started, errors = time.monotonic(), 0
    for part in range(PARTS):
        say(f"{requests} requests", part / PARTS)
        until = requests * (part + 1) // PARTS
        samples = bench.send(photos, until - requests * part // PARTS, IN_FLIGHT)
        errors += sum(sample.status != OK for sample in samples)
        sightings.append(processes.sight(until))
    by_role = {role: tuple(seen[role] for seen in sightings) for role in sightings[0]}
    return SoakResult(
        file=file,
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        requests=requests,
        seconds=time.monotonic() - started,
        errors=errors,
        sightings=by_role,
        grown_bytes=_grown(by_role, lambda seen: seen.resident_bytes),
        grown_descriptors=_grown(by_role, lambda seen: seen.descriptors),
    )


def _grown(by_role: Mapping[str, tuple[Sighting, ...]], held: Callable[[Sighting], int]) -> dict[str, int]:
    return {role: held(seen[-1]) - held(seen[SETTLED]) for role, seen in by_role.items()}


def leaks(name: str, found: SoakResult) -> list[str]:
    """What has grown, and what failed."""
    told = [
        f"{name}: the {role} grew by {grown >> 20} MiB after a quarter of the requests"
        for role, grown in found.grown_bytes.items()
        if grown > GROWN_BYTES
    ]
    told += [
        f"{name}: the {role} has {grown} descriptors more than after a quarter of the requests"
        for role, grown in found.grown_descriptors.items()
        if grown > GROWN_DESCRIPTORS
    ]
    return told + ([f"{name}: {found.errors} requests failed"] if found.errors else [])

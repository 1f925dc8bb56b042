"""What many requests leave behind, with a service that leaks as it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from encoder_pool.bench.service.load import OK, Sample
from encoder_pool.bench.service.loads import Bench
from encoder_pool.bench.service.processes import ServiceProcesses
from encoder_pool.bench.service.results import Sighting
from encoder_pool.bench.service.soak import IN_FLIGHT, PARTS, soak


class Leaky:
    """Keeps a KiB of every request, and answers one in a hundred with 500."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, photos: Sequence[Path], requests: int, in_flight: int) -> list[Sample]:
        self.sent.append(requests)
        return [Sample(0, 0.0, 0.0, 1.0, 500 if at % 100 == 99 else OK, {}) for at in range(requests)]

    def sight(self, requests: int) -> Mapping[str, Sighting]:
        return {"replica": Sighting(requests=requests, resident_bytes=1024 * sum(self.sent), descriptors=5)}


def test_sightings_begin_after_the_warm_up_and_growth_counts_from_a_quarter_on() -> None:
    leaky, told = Leaky(), []
    found = soak(
        cast(Bench, leaky),
        cast(ServiceProcesses, leaky),
        (Path("photo.jpg"),),
        4001,
        "file.yaml",
        "command",
        lambda message, fraction: told.append(fraction),
    )
    warm_up, *parts = leaky.sent
    assert warm_up == 200 > IN_FLIGHT
    assert (len(parts), sum(parts)) == (PARTS, 4001)
    seen = found.sightings["replica"]
    assert [each.requests for each in seen] == [0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4001]
    assert seen[0].resident_bytes == 200 * 1024
    assert found.grown_bytes == {"replica": 3001 * 1024}
    assert found.grown_descriptors == {"replica": 0}
    assert found.errors == sum(part // 100 for part in parts)
    assert len(told) == PARTS + 1

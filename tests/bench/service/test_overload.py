"""What is said of an overload, with a service that keeps what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from encoder_pool.bench.service.loads import Bench, Load, Plan
from encoder_pool.bench.service.measure import Subject
from encoder_pool.bench.service.overload import failings, overload
from encoder_pool.bench.service.processes import ServiceProcesses
from encoder_pool.bench.service.results import LoadResult, OverloadResult, Sighting, TowerRate
from encoder_pool.config import PoolConfig, QueueConfig

from .found import load

PEAK = 8.0
MIB = 1 << 20


class Flooded:
    """Answers `goodput` of its peak when more comes; the replica grows by so much a look."""

    def __init__(self, goodput: float = 1.0, grows_mib: int = 0, errors: int = 0) -> None:
        self.plans: list[Plan] = []
        self._goodput = goodput
        self._grows = grows_mib * MIB
        self._errors = errors

    def carry_out(
        self,
        plan: Plan,
        photos: Sequence[Path],
        tower_items_s: float,
        look: Callable[[], None] = lambda: None,
    ) -> Load:
        self.plans.append(plan)
        for _ in range(8):
            look()
        is_overload = plan.kind == "overload"
        done = Load(plan, [], (0.0, 1.0))
        done.found = self._found(plan, is_overload)
        return done

    def _found(self, plan: Plan, is_overload: bool) -> LoadResult:
        if is_overload:
            return load("overload", items_s=self._goodput * PEAK, errors=self._errors, seconds=plan.seconds)
        return load(items_s=PEAK - plan.lanes / 100, in_flight=plan.lanes)

    def sight(self, requests: int) -> Mapping[str, Sighting]:
        resident = 100 * MIB + requests * self._grows
        return {"replica": Sighting(requests=requests, resident_bytes=resident, descriptors=9)}


def flood(service: Flooded) -> OverloadResult:
    own = TowerRate(items_s=10.0, tokens_s=640.0, mean_batch=4.0, padding=0.0, replay_ms=(5.0,) * 4)
    model = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"}
    queue = QueueConfig(max_requests=80)
    config = PoolConfig.model_validate({"model": model, "ladder": {"min": 1, "max": 4}, "queue": queue})
    return overload(
        cast(Bench, service),
        cast(ServiceProcesses, service),
        Subject("toy-224", (), own, config, 10.0),
        60.0,
        "file.yaml",
        "command",
        lambda message, fraction: None,
    )


def test_twice_the_best_closed_loop_is_sent_and_counted_once_the_queue_is_full() -> None:
    service = Flooded()
    found = flood(service)
    *closed, plan = service.plans
    assert {each.kind for each in closed} == {"closed"}
    assert found.peak.in_flight == min(each.lanes for each in closed)
    assert plan.offered == 2 * found.peak.items_s
    assert plan.seconds == 60.0
    assert plan.warm_s == 80 / found.peak.items_s
    assert found.resident_bytes == {"replica": (100 * MIB,) * 8}
    assert (found.grown_bytes, found.grown_descriptors) == ({"replica": 0}, {"replica": 0})
    assert failings("toy-224", found) == []


def test_what_a_service_should_not_do_is_told() -> None:
    (few,) = failings("toy-224", flood(Flooded(goodput=0.5)))
    assert "answers 50% of its peak" in few
    (grown,) = failings("toy-224", flood(Flooded(grows_mib=20)))
    assert "the replica grew by 120 MiB" in grown
    (failed,) = failings("toy-224", flood(Flooded(errors=3)))
    assert "3 requests failed" in failed

"""All loads on one set of photos, one after the other, and what they come to.

lone      one request at a time
closed    as many in flight as clients keep there, at three depths: the best is the peak
poisson   independent arrivals at 70 % of the peak
bursts    half of the peak on average, a second's worth at once
overload  twice the peak: what is refused, and what is still answered
grouped   a closed loop again, several images a request
shared    a closed loop again, rows in shared memory instead of a body
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from encoder_pool.bench.service.limit import CLIENT
from encoder_pool.bench.service.loads import Bench, Load, Plan, bursts, poisson
from encoder_pool.bench.service.photos import mean_bytes
from encoder_pool.bench.service.results import Kind, LoadResult, SetResult, TowerRate
from encoder_pool.config import PoolConfig
from encoder_pool.pool.batcher import WINDOW

Say = Callable[[str, float | None], None]

GROUPED = 8
"""Images a request of the grouped load."""
DEPTHS = (1, 2, 4)
"""Of the closed loops; the last is as many requests as are in flight at most."""
MOST_IN_FLIGHT = 4 * WINDOW
"""Images a replica: two packs at the worker, a full plan behind them, and as many on their way."""
BUSY_S = 2.0
"""Work in flight at most: a slow tower gets fewer requests, not longer waits."""
LEAST_IN_FLIGHT = 8
"""But so many, that packs of several can be made."""
FILL = 0.9
"""Of the queue's tokens and requests; beyond them a closed loop would be refused."""
OVERLOAD = 2.0
SHARES: tuple[tuple[Kind, float], ...] = (("poisson", 0.7), ("bursts", 0.5), ("overload", OVERLOAD))
"""Of the peak that open loops offer, on average."""
BURST_EVERY_S = 1.0
WARM_S = 1.0
SPARE_LANES = 16
_LOADS = len(DEPTHS) + len(SHARES) + 3
_SEED = 7


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the set's photos, their tower's own rate, and the configuration that is served.

    seconds  counted of each load
    """

    name: str
    photos: tuple[Path, ...]
    own: TowerRate
    config: PoolConfig
    seconds: float

    @property
    def warm_s(self) -> float:
        """What is not counted of a load, at least."""
        return min(WARM_S, self.seconds)

    @property
    def capacity(self) -> float:
        """Items that the queues of all replicas hold at once."""
        tokens = self.own.tokens_s / self.own.items_s
        queue = self.config.queue
        return self.config.scaling.min_replicas * min(queue.max_tokens / tokens, queue.max_requests)

    @property
    def depths(self) -> list[int]:
        """Requests in flight of the closed loops."""
        most = MOST_IN_FLIGHT * self.config.scaling.min_replicas
        top = int(min(most, max(self.own.items_s * BUSY_S, LEAST_IN_FLIGHT), FILL * self.capacity))
        return sorted({max(top * depth // DEPTHS[-1], 1) for depth in DEPTHS})

    def closed(self, kind: Kind, in_flight: int, images: int = 1) -> Plan:
        """A closed loop; what is not counted is one round of it."""
        warm_s = self.warm_s + in_flight * images / self.own.items_s
        return Plan(kind, images, warm_s, self.seconds, in_flight)

    def opened(self, kind: Kind, items_s: float, warm_s: float | None = None) -> Plan:
        """An open loop, with lanes for all requests that may be let in, so that none waits for one.

        warm_s  what is not counted of it, if that is to be more than a moment
        """
        warm_s = self.warm_s if warm_s is None else warm_s
        seconds = warm_s + self.seconds
        if kind == "bursts":
            due = bursts(items_s, seconds, BURST_EVERY_S)
        else:
            due = poisson(items_s, seconds, _SEED)
        let_in = self.config.scaling.min_replicas * self.config.queue.max_requests
        lanes = min(let_in + SPARE_LANES, max(len(due), 1))
        return Plan(kind, 1, warm_s, self.seconds, lanes, due, items_s)


def measure_set(bench: Bench, subject: Subject, file: str, command: str, say: Say) -> SetResult:
    """Every load on the set. Raises ValueError if the service answers nothing in one of them."""
    done: list[Load] = []

    def carry_out(plan: Plan) -> LoadResult:
        say(f"{subject.name}: {_told(plan)}", len(done) / _LOADS)
        done.append(bench.carry_out(plan, subject.photos, subject.own.items_s))
        return done[-1].found

    carry_out(subject.closed("lone", 1))
    closed = [carry_out(subject.closed("closed", in_flight)) for in_flight in subject.depths]
    peak = max(closed, key=lambda load: load.items_s)
    at_70, *_ = [carry_out(subject.opened(kind, share * peak.items_s)) for kind, share in SHARES]
    grouped = carry_out(subject.closed("grouped", max(subject.depths[-1] // GROUPED, 1), GROUPED))
    shared = carry_out(subject.closed("shared", subject.depths[-1]))
    lone = done[0]
    overheads_ms = [
        latency_ms - subject.own.replay_ms[sample.photo]
        for sample, latency_ms in zip(lone.good, lone.latencies_ms, strict=True)
    ]
    return SetResult(
        **_described(subject),
        file=file,
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        service_items_s=peak.items_s,
        ratio=peak.items_s / subject.own.items_s,
        peak_in_flight=peak.in_flight or 0,
        p50_ms=peak.p50_ms,
        mean_batch=peak.mean_batch,
        padding=peak.padding,
        limit=peak.limit,
        p50_at_70_ms=at_70.p50_ms,
        p99_at_70_ms=at_70.p99_ms,
        mean_batch_at_70=at_70.mean_batch,
        lone_ms=lone.found.p50_ms,
        replay_ms=median(subject.own.replay_ms[sample.photo] for sample in lone.good),
        lone_overhead_ms=median(overheads_ms),
        lone_stages_ms=lone.found.stages_ms,
        stages_off_ms=max(load.stages_off_ms for load in done),
        grouped_images=GROUPED,
        grouped_items_s=grouped.items_s,
        grouped_ratio=grouped.items_s / subject.own.items_s,
        shared_items_s=shared.items_s,
        shared_ratio=shared.items_s / subject.own.items_s,
        loads=tuple(load.found for load in done),
    )


def _described(subject: Subject) -> dict[str, Any]:
    """What is known of a set before it is sent."""
    return {
        "model": subject.config.model.name,
        "device": subject.config.model.device,
        "photos": len(subject.photos),
        "photo_bytes": mean_bytes(subject.photos),
        "tower_items_s": subject.own.items_s,
        "tower_tokens_s": subject.own.tokens_s,
        "tower_mean_batch": subject.own.mean_batch,
        "tower_padding": subject.own.padding,
    }


def complaints(name: str, found: SetResult) -> list[str]:
    """What makes numbers of a set meaningless."""
    told = []
    for load in found.loads:
        if load.cached:
            told.append(f"{name}, {load.kind}: {load.cached} items came out of a cache, which is to be off")
        if load.errors:
            told.append(f"{name}, {load.kind}: {load.errors} requests failed, beside {load.refused} refused")
        if load.kind == "shared" and load.shared < load.requests:
            told.append(
                f"{name}, {load.kind}: {load.requests - load.shared} of {load.requests} replies had bodies"
            )
        if load.limit == CLIENT:
            told.append(
                f"{name}, {load.kind}: the clients were the limit, not the service; give --clients more"
            )
    return told


def _told(plan: Plan) -> str:
    if plan.offered is not None:
        return f"{plan.kind}, {plan.offered:.3g} images a second"
    return f"{plan.kind}, {plan.lanes} requests in flight" + (f" of {plan.images}" if plan.images > 1 else "")

"""Loads on a running service: how they are dealt out to the clients, and what is made of their reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from encoder_pool.bench.service.counted import Counted
from encoder_pool.bench.service.crew import Crew
from encoder_pool.bench.service.limit import limit_of
from encoder_pool.bench.service.load import OK, REFUSED, Report, Sample, Share, Target, dealt
from encoder_pool.bench.service.processes import HAPROXY, PREPARERS, REPLICA, SHARD, ServiceProcesses, Spent
from encoder_pool.bench.service.results import Cores, Kind, LoadResult

_LEAD_S = 0.5
"""Until a load begins: clients read their photos."""
LOOK_S = 2.0
TRIES = 4
"""The last is eight times as long as the first."""
TOTAL = "total"
OUTSIDE = "outside"
"""The stage that no server can time: from the client to the replica and back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load: closed with so many requests in flight, or open with requests due at these seconds.

    warm_s, seconds  what is not counted, and then what is
    offered          items a second of an open loop
    lanes            requests in flight at most, of all clients together
    """

    kind: Kind
    images: int
    warm_s: float
    seconds: float
    lanes: int
    due: tuple[float, ...] | None = None
    offered: float | None = None

    def longer(self, times: int) -> Plan:
        """The same for so many times as long; an open loop goes on with the same arrivals."""
        if self.due is None:
            return replace(self, seconds=self.seconds * times)
        whole_s = self.warm_s + self.seconds
        due = tuple(at + turn * whole_s for turn in range(times) for at in self.due)
        return replace(self, seconds=self.seconds * times + self.warm_s * (times - 1), due=due)


class Load:
    """A load that was carried out.

    counted  requests that were due in the window of an open loop, however late they ended, or that ended in
             the window of a closed one; good are those that were answered well
    packs    that the service counted in the window
    found    what it comes to
    """

    packs: int
    found: LoadResult

    def __init__(self, plan: Plan, samples: Sequence[Sample], window: tuple[float, float]) -> None:
        def is_in(at: float) -> bool:
            return window[0] <= at < window[1]

        is_open = plan.due is not None
        self.plan = plan
        self.counted = [sample for sample in samples if is_in(sample.due if is_open else sample.done)]
        self.good = [sample for sample in self.counted if sample.status == OK]
        ended = sum(sample.status == OK and is_in(sample.done) for sample in samples)
        self.items_s = ended * plan.images / (window[1] - window[0])

    @property
    def latencies_ms(self) -> list[float]:
        """Of the good ones, from when they were due."""
        return [(sample.done - sample.due) * 1e3 for sample in self.good]

    @property
    def stages_ms(self) -> dict[str, float]:
        """Means over the good ones, `outside` last."""
        names = [name for name in self.good[0].stages_ms if name != TOTAL]
        inside = {name: float(np.mean([each.stages_ms[name] for each in self.good])) for name in names}
        waits = [ms - each.stages_ms[TOTAL] for ms, each in zip(self.latencies_ms, self.good, strict=True)]
        return {**inside, OUTSIDE: float(np.mean(waits))}

    @property
    def stages_off_ms(self) -> float:
        """The most by which the stages of one reply missed its total."""
        return max(abs(sum(each.stages_ms.values()) - 2 * each.stages_ms[TOTAL]) for each in self.good)


class Bench:
    """A service under load: where it is, who sends, and where its numbers come from."""

    def __init__(
        self,
        target: Target,
        crew: Crew,
        processes: ServiceProcesses,
        look: Callable[[], Counted],
        num_cores: int,
    ) -> None:
        self._target = target
        self._crew = crew
        self._processes = processes
        self._look = look
        self._num_cores = num_cores

    def carry_out(
        self,
        plan: Plan,
        photos: Sequence[Path],
        tower_items_s: float,
        look: Callable[[], None] = lambda: None,
    ) -> Load:
        """The load. Raises ValueError if nothing was answered well in its window.

        While nothing at all comes back in time, or what does was packed before the service was first asked
        for its counts, it is tried again, for twice as long.

        look  called every LOOK_S in the window
        """
        for attempt in range(TRIES):
            load = self._carry_out(plan.longer(2**attempt), tuple(photos), tower_items_s, look)
            if load.counted and (load.packs or not load.good):
                break
        if not load.good:
            raise ValueError(_nothing(load))
        return load

    def _carry_out(
        self, plan: Plan, photos: tuple[Path, ...], tower_items_s: float, look: Callable[[], None]
    ) -> Load:
        begin = time.monotonic() + _LEAD_S
        window = (begin + plan.warm_s, begin + plan.warm_s + plan.seconds)
        shares = self._shares(plan, photos, begin, window)
        self._crew.begin(shares)
        time.sleep(max(window[0] - time.monotonic(), 0.0))
        counted, usage = self._look(), self._processes.usage()
        while (left_s := window[1] - time.monotonic()) > 0:
            look()
            time.sleep(min(left_s, LOOK_S))
        spent = Spent.between(usage, self._processes.usage())
        counted = self._look().since(counted)
        reports = self._crew.reports(len(shares))
        load = Load(plan, [sample for report in reports for sample in report.samples], window)
        load.packs = counted.packs
        if load.good:
            found = _result(load, counted, _cores(reports, spent, plan.seconds, self._num_cores))
            limit = limit_of(found, load.items_s / tower_items_s, self._num_cores)
            load.found = found.model_copy(update={"limit": limit})
        return load

    def send(self, photos: Sequence[Path], requests: int, in_flight: int) -> list[Sample]:
        """So many requests of one image, in a closed loop that has no other end."""
        begin = time.monotonic() + _LEAD_S
        clients = min(len(self._crew), in_flight)
        shares = [
            replace(share, most=-(-(requests - client) // clients))
            for client, share in enumerate(
                self._shares(Plan("closed", 1, 0.0, inf, in_flight), tuple(photos), begin, (begin, inf))
            )
        ]
        self._crew.begin(shares)
        return [sample for report in self._crew.reports(clients) for sample in report.samples]

    def _shares(
        self, plan: Plan, photos: tuple[Path, ...], begin: float, window: tuple[float, float]
    ) -> list[Share]:
        clients = min(len(self._crew), plan.lanes)
        due = None if plan.due is None else dealt([begin + at for at in plan.due], clients)
        return [
            Share(
                target=self._target,
                photos=photos,
                images=plan.images,
                lanes=-(-(plan.lanes - client) // clients),
                first=client * len(photos) // clients,
                begin_at=begin,
                count_from=window[0],
                end_at=window[1],
                due=None if due is None else due[client],
                shares=plan.kind == "shared",
            )
            for client in range(clients)
        ]


def _result(load: Load, counted: Counted, cores: Cores) -> LoadResult:
    """Without its limit, which is told from the rest."""
    plan = load.plan
    statuses = [sample.status for sample in load.counted]
    p50, p90, p99 = np.percentile(load.latencies_ms, (50, 90, 99)).tolist()
    late_ms = [(sample.sent - sample.due) * 1e3 for sample in load.counted]
    return LoadResult(
        kind=plan.kind,
        images=plan.images,
        in_flight=plan.lanes if plan.due is None else None,
        offered=plan.offered,
        seconds=plan.seconds,
        requests=len(load.good),
        refused=statuses.count(REFUSED),
        errors=sum(status not in (OK, REFUSED) for status in statuses),
        items_s=load.items_s,
        tokens_s=load.items_s * counted.tokens_an_item,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        mean_batch=counted.mean_batch,
        padding=counted.padding,
        cached=counted.cached,
        shared=sum(sample.is_shared for sample in load.good),
        late_p99_ms=None if plan.due is None else float(np.percentile(late_ms, 99)),
        stages_ms=load.stages_ms,
        cores=cores,
        limit="",
    )


def poisson(requests_s: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Times in seconds, at random and independent of each other, so many a second on average."""
    random = np.random.default_rng(seed)
    count = random.poisson(requests_s * seconds)
    return tuple(np.sort(random.uniform(0.0, seconds, count)).tolist())


def bursts(requests_s: float, seconds: float, every_s: float) -> tuple[float, ...]:
    """Times in seconds: as many as are due until the next burst, all at once, at each burst."""
    count = max(round(requests_s * every_s), 1)
    starts = np.arange(0.0, seconds, every_s)
    return tuple(np.repeat(starts, count).tolist())


def _cores(reports: Sequence[Report], spent: Spent, seconds: float, num_cores: int) -> Cores:
    clients = [report.cpu_s / seconds for report in reports]
    return Cores(
        replica=spent.roles[REPLICA],
        replica_thread=spent.threads[REPLICA],
        preparers=spent.roles[PREPARERS],
        shard=spent.roles[SHARD],
        shard_thread=spent.threads[SHARD],
        haproxy=spent.roles[HAPROXY],
        haproxy_thread=spent.threads[HAPROXY],
        client=max(clients),
        clients=sum(clients),
        others=max(spent.busy - spent.family, 0.0),
        idle=max(num_cores - spent.busy, 0.0),
    )


def _nothing(load: Load) -> str:
    statuses = sorted({sample.status for sample in load.counted})
    came = f"; what came had status {', '.join(map(str, statuses))}" if statuses else ""
    return (
        f"no request of a load of {load.plan.kind} arrivals was answered well within its "
        f"{load.plan.seconds:g} s{came}; give --seconds more, or see why the service fails"
    )

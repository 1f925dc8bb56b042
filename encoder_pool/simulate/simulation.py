"""One simulation: traffic against a fleet, out of which a result is made.

Traffic comes for its seconds, and what came is answered after that, too. Requests, and the work of every
resource, are counted from the end of a warm-up to the end of the traffic.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from encoder_pool.core import Grid, Modality, PreparedItem, Source
from encoder_pool.errors import PoolError
from encoder_pool.graphs.counters import Tally
from encoder_pool.simulate.autoscaler import Autoscaler
from encoder_pool.simulate.costs import Costs, Hardware
from encoder_pool.simulate.fleet import Answer, Fleet
from encoder_pool.simulate.line import pause, until
from encoder_pool.simulate.load import LoadMeter
from encoder_pool.simulate.loop import run
from encoder_pool.simulate.replica import OK, Blueprint, Image
from encoder_pool.simulate.results import Measured, Result, summarise
from encoder_pool.simulate.traffic import Arrival, Picture, Traffic
from encoder_pool.towers.adapter import ForeseesImages

WARM_UP_SHARE, LONGEST_WARM_UP_S = 1 / 6, 5.0
REFUSED_S = 0.1
"""How long a client of closed traffic waits after a request that got no embeddings."""
_COLLECT_EVERY = 50_000
"""New objects to a collection; usually they are 700."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that decides a result.

    gpus       the number there is; where `autoscales`, the most there may be: the policy starts at
               `scaling.min_replicas`
    """

    blueprint: Blueprint
    adapter: ForeseesImages
    hardware: Hardware
    traffic: Traffic
    gpus: int
    autoscales: bool = False

    @property
    def warm_up_s(self) -> float:
        """Seconds that are not counted."""
        return min(self.traffic.seconds * WARM_UP_SHARE, LONGEST_WARM_UP_S)


def simulate(scenario: Scenario) -> Result:
    """The result; of the same scenario the same, but for the time it took. ValueError for a bad trace."""
    started = time.perf_counter()
    with _rare_collections():
        result = summarise(scenario.gpus, run(_Simulation(scenario).run()))
    return replace(result, took_s=time.perf_counter() - started)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the collector look for circles less often: each time it walks over all that is under way."""
    usual = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._image = cache(_images_of(scenario.adapter, scenario.blueprint.costs))
        self._answers: list[Answer] = []
        self._fleet: Fleet
        self._origin: float

    async def run(self) -> Measured:
        scenario, traffic = self._scenario, self._scenario.traffic
        fleet = self._fleet = Fleet(scenario.blueprint, scenario.hardware, scenario.gpus)
        scaling = scenario.blueprint.config.scaling
        for _ in range(min(scaling.min_replicas, scenario.gpus) if scenario.autoscales else scenario.gpus):
            await fleet.add()
        self._origin = asyncio.get_running_loop().time()
        metering = asyncio.create_task(self._meter())
        scaling_on = asyncio.create_task(self._scale()) if scenario.autoscales else None
        arrivals = traffic.requests()
        await (self._clients(arrivals) if traffic.arrivals == "closed" else self._let_in(arrivals))
        meter = await metering
        if scaling_on is not None:
            scaling_on.cancel()
        fleet.stop()
        return self._measured(meter)

    async def _let_in(self, arrivals: Iterator[Arrival]) -> None:
        """Begin every request at its time, whatever became of those before, and wait for all."""
        async with asyncio.TaskGroup() as requests:
            for arrival in arrivals:
                await until(self._origin + arrival.at_s)
                requests.create_task(self._follow(arrival))

    async def _clients(self, arrivals: Iterator[Arrival]) -> None:
        """So many clients, each with one request at a time."""
        traffic = self._scenario.traffic
        assert traffic.in_flight is not None
        async with asyncio.TaskGroup() as clients:
            for _ in range(traffic.in_flight):
                clients.create_task(self._client(arrivals, self._origin + traffic.seconds))

    async def _client(self, arrivals: Iterator[Arrival], end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            answer = await self._follow(next(arrivals))
            if answer.status != OK:
                await pause(REFUSED_S)

    async def _follow(self, arrival: Arrival) -> Answer:
        try:
            images = [self._image(picture) for picture in arrival.pictures]
        except PoolError as error:  # no image that can be prepared; a replica would see that in its header
            now = asyncio.get_running_loop().time()
            answer = Answer(now, now, error.status, len(arrival.pictures), 0)
        else:
            answer = await self._fleet.answer(images)
        self._answers.append(answer)
        return answer

    async def _meter(self) -> LoadMeter:
        scenario = self._scenario
        await until(self._origin + scenario.warm_up_s)
        meter = LoadMeter(self._fleet, asyncio.get_running_loop().time())
        await until(self._origin + scenario.traffic.seconds)
        meter.finish(asyncio.get_running_loop().time())
        return meter

    async def _scale(self) -> None:
        scenario = self._scenario
        scaling = scenario.blueprint.config.scaling.model_copy(update={"max_replicas": scenario.gpus})
        await Autoscaler(self._fleet, scaling, scenario.hardware.replica_start_s).run()

    def _measured(self, meter: LoadMeter) -> Measured:
        scenario, fleet = self._scenario, self._fleet
        began, ended = self._origin + scenario.warm_up_s, self._origin + scenario.traffic.seconds
        replicas = [placed.replica for placed in fleet.ever]
        return Measured(
            seconds=ended - began,
            answers=[answer for answer in self._answers if began <= answer.sent_at < ended],
            hosts=len(fleet.hosts),
            replica_s=meter.replica_s,
            packs=sum(replica.counters.packs for replica in replicas),
            items_packed=sum(replica.counters.items_packed for replica in replicas),
            ran=sum((replica.shard.counters.total for replica in replicas), Tally()),
            uses=meter.uses,
        )


def _images_of(adapter: ForeseesImages, costs: Costs) -> Callable[[Picture], Image]:
    """What a picture is to the pool; one object serves all pictures that are alike."""
    no_bytes, source = np.zeros(0, np.uint8), Source("SIMULATED")

    def image(picture: Picture) -> Image:
        foreseen = adapter.foresee_image(picture.width, picture.height)
        cost, megapixels = foreseen.cost, picture.width * picture.height / 1e6
        grid = Grid(1, 1, cost.out_rows)
        item = PreparedItem(Modality.IMAGE, no_bytes, grid, cost, cost.out_rows, "", source)
        prepare_s = (costs.prepare_ms + megapixels * costs.prepare_ms_per_megapixel) / 1e3
        return Image(item, picture.num_bytes, foreseen.num_bytes, prepare_s)

    return image

"""The simulation against what can be worked out, and against the pool itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import exp, factorial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from encoder_pool.core import Cost, Media, Modality
from encoder_pool.errors import UndecodableMedia
from encoder_pool.pool.dispatch import Equipped
from encoder_pool.pool.identity import Identity
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport
from encoder_pool.pool.pool import Pool
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.sizing import size_pool
from encoder_pool.pool.worker import PackFailed, Worker
from encoder_pool.simulate.costs import Hardware
from encoder_pool.simulate.results import Result
from encoder_pool.simulate.shard import SimulatedShard, report_of
from encoder_pool.simulate.simulation import simulate
from encoder_pool.simulate.traffic import Traffic
from encoder_pool.towers.adapter import Foreseen
from tests.pool.fake_shard import FakeShard
from tests.pool.local_pool import config, until
from tests.pool.local_preparers import LocalPreparers
from tests.pool.long_toy import LongToyAdapter, long_toy
from tests.toy import TOKENS

from .pools import ENDLESS, FREE, Wide, blueprint, scenario, table, trace


def close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-6)


def test_packs_and_latencies_are_those_of_a_trace_worked_out_by_hand(tmp_path: Path) -> None:
    """The first goes alone for 10 ms; the three that come meanwhile share the next pack, for 20 ms."""
    rows = ((1.0, 1), (1.001, 1), (1.002, 1), (1.003, 1))
    result = simulate(scenario(blueprint({1: 10, 4: 20}), trace(tmp_path / "t.csv", *rows, seconds=3)))
    latencies = sorted([10, 29, 28, 27])
    assert result.requests == 4
    assert result.p50_ms == close((latencies[1] + latencies[2]) / 2)
    assert result.p99_ms == close(latencies[3] - 0.03 * (latencies[3] - latencies[2]))
    assert result.mean_batch == 2
    assert result.padding == close(1 / 5)
    assert result.uses["gpu"].mean == close(0.030 / 2.5)
    assert result.first_to_break == "gpu"
    assert result.breaks_at_per_s == close(4 / 0.030)


def test_what_a_request_costs_beside_the_gpu_adds_up(tmp_path: Path) -> None:
    costs = FREE.model_copy(
        update={
            "request_ms": 1.0,
            "prepare_ms": 2.0,
            "prepare_ms_per_megapixel": 1e6,  # one pixel is one ms
            "hand_over_ms": 3.0,
            "launch_ms": 4.0,
            "hop_ms": 5.0,
        }
    )
    plan = blueprint({1: 10}, costs)
    result = simulate(scenario(plan, trace(tmp_path / "t.csv", (1.0, 1), seconds=3)))
    assert result.p50_ms == close(1 + 2 + 1 + 3 + 4 + 10 + 2 * 5)


def mdl_quantile(load: float, service_ms: float, share: float) -> float:
    """Milliseconds in a queue with Poisson arrivals and one constant service time (Erlang, 1909)."""

    def waits_at_most(ms: float) -> float:
        rate = load / service_ms
        terms = (
            (-rate * (ms - k * service_ms)) ** k / factorial(k) * exp(rate * (ms - k * service_ms))
            for k in range(int(ms // service_ms) + 1)
        )
        return (1 - load) * sum(terms)

    low, high = 0.0, 20 * service_ms
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_at_most(middle) < share else (low, middle)
    return high + service_ms


def test_a_gpu_that_takes_one_item_at_a_time_is_the_queue_of_the_textbook() -> None:
    load, service_ms = 0.6, 10.0
    traffic = Traffic(requests_per_s=load / service_ms * 1e3, sizes="1x1", seconds=36, seed=3)
    result = simulate(scenario(blueprint({1: service_ms}), traffic))
    for share, found in ((0.5, result.p50_ms), (0.9, result.p90_ms)):
        assert found == pytest.approx(mdl_quantile(load, service_ms, share), rel=0.1)
    assert result.uses["gpu"].mean == pytest.approx(load, rel=0.05)
    assert result.mean_batch == 1
    assert result.lost == 0


def busy() -> Callable[[int], Result]:
    """Several hosts, more than they can do: everything that can happen to a request happens."""
    plan = blueprint(
        {1: 10, 4: 20, 16: 60},
        FREE.model_copy(update={"prepare_ms": 30.0, "hop_ms": 0.3}),
        queue={"max_tokens": 36, "deadline_s": 0.3, "packs_in_flight": 2},
        replica={"prepare_processes": 4},
    )
    traffic = Traffic(requests_per_s=120, arrivals="bursts", sizes="3x2", seconds=11, images_per_request=2)

    def of_seed(seed: int) -> Result:
        seeded = traffic.model_copy(update={"seed": seed})
        return simulate(scenario(plan, seeded, gpus=3, hardware=hosts(2, cores=6)))

    return of_seed


def hosts(gpus: int, cores: int = 100, **others: float) -> Hardware:
    """Hosts of so many GPUs, and a network that takes time."""
    update = {"gpus_per_host": gpus, "cores_per_host": cores, "nic_gbit_s": 1.0, **others}
    return ENDLESS.model_copy(update=update)


def test_every_request_ends_and_overload_is_shed_by_the_pools_own_admission() -> None:
    result = busy()(1)
    answered = round(result.answered_per_s * (11 - 11 / 6))
    assert answered + result.lost == result.requests
    assert min(answered, result.shed, result.expired) > 0
    assert result.hosts == 2


def test_the_same_seed_gives_the_same_result_and_another_another() -> None:
    of_seed = busy()
    assert replace(of_seed(1), took_s=0) == replace(of_seed(1), took_s=0)
    assert replace(of_seed(1), took_s=0) != replace(of_seed(2), took_s=0)


def test_clients_that_wait_for_their_answers_keep_so_many_requests_in_flight() -> None:
    traffic = Traffic(arrivals="closed", in_flight=4, sizes="1x1", seconds=12)
    result = simulate(scenario(blueprint({1: 10, 4: 20}, queue={"packs_in_flight": 2}), traffic))
    assert result.answered_per_s == pytest.approx(result.requests / 10, rel=0.01)
    assert result.p50_ms * result.answered_per_s / 1e3 == pytest.approx(4, rel=0.02)  # Little's law


def test_a_shard_that_fails_is_answered_as_the_dispatcher_answers_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fails(shard: SimulatedShard, request: PackRequest) -> PackReply:
        raise PackFailed("on purpose")

    monkeypatch.setattr(SimulatedShard, "run", fails)
    result = simulate(scenario(blueprint({1: 1}), trace(tmp_path / "t.csv", (1.0, 1), seconds=3)))
    assert (result.requests, result.failed) == (1, 1)


class Narrow(Wide):
    def foresee_image(self, width: int, height: int) -> Foreseen:
        if width > 2:
            raise UndecodableMedia("too narrow")
        return super().foresee_image(width, height)


def test_a_picture_that_cannot_be_prepared_is_a_request_that_failed(tmp_path: Path) -> None:
    requests = trace(tmp_path / "t.csv", (1.0, 1), (1.5, 3), seconds=3)
    result = simulate(replace(scenario(blueprint({1: 1}), requests), adapter=Narrow()))
    assert (result.requests, result.failed) == (2, 1)


def test_a_mistake_of_our_own_ends_the_simulation(tmp_path: Path) -> None:
    class Broken(Wide):
        def foresee_image(self, width: int, height: int) -> Foreseen:
            raise AssertionError("a mistake")

    requests = trace(tmp_path / "t.csv", (1.0, 1), seconds=3)
    with pytest.raises(ExceptionGroup) as raised:
        simulate(replace(scenario(blueprint({1: 1}), requests), adapter=Broken()))
    assert raised.group_contains(AssertionError, match="a mistake")


def test_an_image_that_no_pool_encodes_is_refused_and_one_beyond_the_ladder_runs_eagerly(
    tmp_path: Path,
) -> None:
    plan = blueprint({1: 10, 4: 20})
    sizing = replace(plan.sizing, largest_item=Cost(8, 8, 8))
    traffic = trace(tmp_path / "t.csv", (1.0, 9), (1.5, 8), seconds=3)
    result = simulate(scenario(replace(plan, sizing=sizing), traffic))
    assert (result.requests, result.failed) == (2, 1)
    assert result.p50_ms == close(10 * 20 + 8)


def test_between_hosts_both_networks_carry_everything_once_more(tmp_path: Path) -> None:
    """Of two requests the second comes in at the second host, whose proxy begins with the first replica."""
    plan = blueprint({1: 1}, FREE.model_copy(update={"hop_ms": 1.0}))
    plan = replace(plan, tower=replace(plan.tower, output_row_bytes=125_000))  # a ms at a Gbit a second
    requests = trace(tmp_path / "t.csv", (1.0, 1), (1.5, 1), seconds=3)
    one = simulate(scenario(plan, requests, gpus=2, hardware=hosts(2)))
    assert one.p50_ms == one.p99_ms == pytest.approx(1 + 2 * 1 + 1, rel=1e-3)
    two = simulate(scenario(plan, requests, gpus=2, hardware=hosts(1)))
    # Out at the replica's host, in at the other: at most two milliseconds more.
    assert two.p99_ms == pytest.approx(1 + 2 * 1 + 1 + 2, rel=0.02)
    assert two.p50_ms == pytest.approx(1 + 2 * 1 + 1 + 1, rel=0.02)
    carried_ms = 2.5e3 * two.uses["network out"].mean * 2
    assert carried_ms == pytest.approx(1 + 2, rel=0.01)


def test_the_policy_adds_replicas_for_a_load_that_one_cannot_carry_and_keeps_to_the_most() -> None:
    scaling = {"min_replicas": 1, "max_replicas": 9, "target_drain_s": 0.5, "upscale_delay_s": 1.0}
    plan = blueprint({1: 50}, scaling=scaling, queue={"packs_in_flight": 2, "max_tokens": 32})
    traffic = Traffic(requests_per_s=50, sizes="1x1", seconds=30)
    growing = hosts(2, replica_start_s=3.0)
    result = simulate(scenario(plan, traffic, gpus=3, hardware=growing, autoscales=True))
    fixed = simulate(scenario(plan, traffic, gpus=1, hardware=growing))
    assert 2.5 < result.replicas <= 3
    assert result.shed < fixed.shed / 4


class Gated(FakeShard):
    """Reports a ladder and a table as they are given, and keeps its first pack until it is told."""

    def __init__(self, report: ShardReport) -> None:
        super().__init__(0)
        self.report = report
        self.gate = asyncio.Event()

    async def capture(self) -> ShardReport:
        return self.report

    async def run(self, request: PackRequest) -> PackReply:
        reply = await super().run(request)
        await self.gate.wait()
        return reply


SIZES = (3, 1, 1, 5, 2, 2, 8, 1, 4, 1, 1, 6, 3, 2, 7, 1)
"""Of what waits while the first is encoded."""
BUDGETS_MS = {1: 10.0, 2: 14.0, 4: 20.0, 8: 30.0}


class SeenPack(NamedTuple):
    rung: int | None
    sizes: tuple[int, ...]


def seen(request: PackRequest) -> SeenPack:
    return SeenPack(request.rung, tuple(item.cost.patch_rows for item in request.items))


async def real_packs() -> list[SeenPack]:
    """Every pack that the real pool forms, on the real clock."""
    settings = config(
        ladder={"budgets": list(BUDGETS_MS)},
        queue={"packs_in_flight": 1},
        replica={"prepare_processes": 1},
    )
    adapter = LongToyAdapter(Path())
    sizing = size_pool(settings, adapter)
    shard = Gated(report_of(sizing.ladder, table(list(BUDGETS_MS.values()))))
    worker = Worker(settings.shard, lambda: shard)
    await worker.start()
    ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
    loop = asyncio.get_running_loop()
    identity, preparers = Identity(settings.model, "toy"), LocalPreparers(lambda: adapter, settings.limits)
    workers = [Equipped(worker, ring)]
    pool = Pool(settings, adapter, sizing, workers, preparers, identity, loop.time)
    pool.start()

    async def encode(size: int) -> None:
        with pool.admit() as reservation:
            await pool.encode([Media(Modality.IMAGE, long_toy([1] * size), "input")], reservation, 30)

    tasks = [asyncio.create_task(encode(1))]
    await until(lambda: bool(shard.packs))
    tasks += [asyncio.create_task(encode(size)) for size in SIZES]
    await until(lambda: pool.admission.tokens == (1 + sum(SIZES)) * TOKENS)
    shard.gate.set()
    await asyncio.gather(*tasks)
    pool.stop()
    return [seen(pack) for pack in shard.packs]


def test_the_simulation_forms_the_packs_that_the_real_pool_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asyncio.run(real_packs())
    simulated: list[SeenPack] = []
    original = SimulatedShard.run

    async def noting(shard: SimulatedShard, request: PackRequest) -> PackReply:
        simulated.append(seen(request))
        return await original(shard, request)

    monkeypatch.setattr(SimulatedShard, "run", noting)
    rows = [(1.0, 1), *((1.001 + at * 1e-4, size) for at, size in enumerate(SIZES))]
    simulate(scenario(blueprint(BUDGETS_MS), trace(tmp_path / "t.csv", *rows, seconds=3)))
    assert sum(len(pack.sizes) for pack in real) == 1 + len(SIZES)
    assert len({pack.rung for pack in real}) > 1
    assert simulated == real

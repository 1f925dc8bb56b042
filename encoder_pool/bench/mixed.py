"""Mixed images, as traffic brings them: our pool with a full queue, and the seed's policy call by call.

Both start from items on the device and end with every item's rows there. Ours gets frames as they travel,
uint8, and cuts and normalises them; the seed's gets patches that are normalised already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from encoder_pool.bench.cases import Traffic
from encoder_pool.bench.device import Device, Repeats, Work, timed, wall_ms
from encoder_pool.bench.inputs import random_images
from encoder_pool.bench.ours import OurTower
from encoder_pool.bench.results import MixedResult
from encoder_pool.bench.seed import SeedItem, SeedPolicy
from encoder_pool.bench.stock import StockTower
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.grid_geometry import Geometry


def measure_mixed(
    ours: OurTower,
    seed: SeedPolicy,
    stock: StockTower,
    geometry: Geometry,
    traffic: Traffic,
    device: Device,
    repeats: Repeats,
) -> MixedResult:
    """Time all calls, call by call, and the same images as a queue that is kept full."""
    items = random_images(traffic.grids(geometry), geometry, device.torch_device)
    calls = [items[call * traffic.a_call : (call + 1) * traffic.a_call] for call in range(traffic.calls)]
    seed_calls = [[_seed_item(item, ours, stock) for item in call] for call in calls]

    def queued() -> None:
        ours.drain(items, traffic.waiting)

    def by_call() -> None:
        for call in calls:
            ours.encode(call)

    def seed_by_call() -> None:
        for call in seed_calls:
            seed(call)

    def rate(patch_rows: int, work: Work) -> float:
        return patch_rows / geometry.unit / timed(partial(wall_ms, device), work, repeats).ms * 1000

    in_queue, in_calls = ours.tally(queued), ours.tally(by_call)
    return MixedResult(
        ours_tokens_s=rate(in_queue.rows_asked, queued),
        ours_calls_tokens_s=rate(in_calls.rows_asked, by_call),
        seed_tokens_s=rate(in_calls.rows_asked, seed_by_call),
        padding=in_queue.padding,
        calls_padding=in_calls.padding,
        seed_padding=_seed_padding(seed, calls),
        images_a_call=traffic.a_call,
        calls=traffic.calls,
        waiting=traffic.waiting,
    )


def _seed_item(item: StagedItem, ours: OurTower, stock: StockTower) -> SeedItem:
    return SeedItem(stock.pixels(ours.tower.stage([item])["patches"]), item.grid)


def _seed_padding(seed: SeedPolicy, calls: Sequence[Sequence[StagedItem]]) -> float:
    counted = [seed.rows([item.grid for item in call]) for call in calls]
    return 1 - sum(rows.asked for rows in counted) / sum(rows.run for rows in counted)

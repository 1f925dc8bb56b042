"""`encoder-pool bench shard`: a shard fed through its ring, beside bare replays of the same pack.

The shard is the service's own: a Ray actor with the file's tower, captured for this pack. It is fed as a
replica feeds it: as many packs in flight as the file has, each written into the ring, told on the line,
computed, and read out of the ring. The bare replay is timed before, in a process of its own, which is gone
when the shard starts. What the shard does less is what its pipeline does not hide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import ray
import torch
from pydantic import TypeAdapter
from ray.util.placement_group import placement_group
from rich.console import RenderableType
from rich.table import Table

from encoder_pool.bench.device import Repeats, open_device, timed
from encoder_pool.bench.machine import this_machine, versions
from encoder_pool.bench.results import Machine, Number, put
from encoder_pool.bench.service.photos import PhotoSet
from encoder_pool.bench.service.tower import apart
from encoder_pool.builder import bundles
from encoder_pool.config import LadderConfig, PoolConfig
from encoder_pool.core import Cost, Media, Modality, PreparedItem
from encoder_pool.graphs.runner import Batch
from encoder_pool.launch.file import read_service_file
from encoder_pool.pool.messages import PackRequest, lay_out
from encoder_pool.pool.ray_shard import RayShard, start_ray_shard
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import StagedItem, adapter_class
from encoder_pool.weights import ensure

WARM_PACKS = 20
_LEAST_PACKS = 3
_RUNG = 0
_FIRST_SHARD = 1
_REPLAYS = Repeats(most=100, least=10, budget_s=3.0, warm_up=5)

Say = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Options:
    """The command line: so many images, square ones of so many pixels a side, make a pack."""

    file: Path
    images: int
    side: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ShardResults:
    """A run.

    replay_ms   one bare replay of the pack's rung
    pack_ms     the shard's time for a pack, one after the other without a pause
    share       of the bare rate that the shard reaches
    bytes_in, bytes_out  of a pack
    """

    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    model: str
    images: int
    tokens: int
    packs: int
    replay_ms: Number
    pack_ms: Number
    share: Number
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class _Work:
    """A pack, and the configuration whose only rung it fills."""

    config: PoolConfig
    items: tuple[PreparedItem, ...]

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)


def bench(options: Options, command: str, say: Say) -> ShardResults:
    """Replays by themselves, then the shard. Raises ValueError if the file's tower takes no such pack."""
    work = _work(options)
    device = open_device(work.config.model.device)
    say("replays by themselves", 0.1)
    replay_ms = apart(_replay_ms, work)
    say("the shard starts", 0.3)
    ray.init(num_gpus=1 if device.name == "cuda" else 0, log_to_driver=False, include_dashboard=False)
    try:
        packs, taken_s = asyncio.run(_fed(work, options.seconds, say))
    finally:
        ray.shutdown()
    adapter = adapter_class(work.config.model.adapter)(ensure(work.config.model.checkpoint))
    pack_ms = taken_s / packs * 1e3
    return ShardResults(
        machine=this_machine(device),
        versions=versions(),
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=work.config.model.name,
        images=len(work.items),
        tokens=work.tokens,
        packs=packs,
        replay_ms=replay_ms,
        pack_ms=pack_ms,
        share=replay_ms / pack_ms,
        bytes_in=sum(item.data.nbytes for item in work.items),
        bytes_out=work.tokens * adapter.width * work.config.model.dtype.storage.itemsize,
    )


def report(results: ShardResults) -> list[RenderableType]:
    """For a terminal."""
    table = Table(title=f"{results.model}: {results.images} images, {results.tokens} tokens a pack")
    for title in ("bare replay, ms", "a pack of the shard, ms", "share", "packs", "MB in", "MB out"):
        table.add_column(title, justify="right")
    table.add_row(
        f"{results.replay_ms:.2f}",
        f"{results.pack_ms:.2f}",
        f"{results.share:.1%}",
        f"{results.packs}",
        f"{results.bytes_in / 1e6:.1f}",
        f"{results.bytes_out / 1e6:.1f}",
    )
    return [table]


def write(results: ShardResults, path: Path) -> None:
    """As JSON."""
    put(TypeAdapter(ShardResults).dump_json(results, indent=2) + b"\n", path)


def _work(options: Options) -> _Work:
    config = read_service_file(options.file).applications[0].config
    adapter = adapter_class(config.model.adapter)(ensure(config.model.checkpoint))
    with TemporaryDirectory(prefix="encoder-pool-bench-") as folder:
        paths = PhotoSet.named(f"{options.side}").write(options.images, Path(folder))
        media = [Media(Modality.IMAGE, path.read_bytes(), path.name) for path in paths]
    items = tuple(adapter.prepare(one, config.limits) for one in media)
    tokens = sum(item.tokens for item in items)
    ladder = LadderConfig(budgets=(tokens,), longest_tiers=(items[0].cost.longest or tokens,))
    work = _Work(config.model_copy(update={"ladder": ladder}), items)
    rung = size_pool(work.config, adapter).ladder[_RUNG]
    if not Cost.total(item.cost for item in items).fits(rung.capacity):
        raise ValueError(f"{options.images} images of {options.side} pixels do not fit one rung: {rung}")
    return work


def _replay_ms(work: _Work) -> float:
    """In a process of its own."""
    device = open_device(work.config.model.device)
    torch.set_num_threads(work.config.shard.threads)
    adapter = adapter_class(work.config.model.adapter)(ensure(work.config.model.checkpoint))
    tower = adapter.load(work.config.model)
    runner = device.runner(tower, size_pool(work.config, adapter).ladder[: _RUNG + 1])
    runner.capture(lambda done, total: None)
    staged = [StagedItem(torch.from_numpy(i.data).to(device.torch_device), i.grid) for i in work.items]
    runner.run(Batch.of(tower, staged, [item.cost for item in work.items]), _RUNG)
    with torch.inference_mode():
        return timed(device.time_ms, runner.recording(_RUNG), _REPLAYS).ms


async def _fed(work: _Work, seconds: float, say: Say) -> tuple[int, float]:
    """Packs of a shard that is never without one, and the seconds that they took."""
    adapter = adapter_class(work.config.model.adapter)(ensure(work.config.model.checkpoint))
    sizing = size_pool(work.config, adapter)
    ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
    group = placement_group(bundles(work.config), strategy="STRICT_PACK")
    await group.ready()
    ladder, checkpoint = sizing.ladder[: _RUNG + 1], ensure(work.config.model.checkpoint)
    shard = start_ray_shard(
        "bench-shard", work.config, checkpoint, ladder, ring.address, group, _FIRST_SHARD, None
    )
    row_bytes = adapter.width * work.config.model.dtype.storage.itemsize
    sizes = [item.tokens * row_bytes for item in work.items]
    try:
        await shard.load()
        await shard.capture()
        say("packs through the ring", 0.6)
        ended: list[float] = []
        until = time.monotonic() + seconds
        slots = range(sizing.slots)
        await asyncio.gather(*[_feed(shard, ring, slot, work.items, sizes, ended, until) for slot in slots])
    finally:
        shard.kill()
        ring.close()
    counted = ended[min(WARM_PACKS, len(ended) // 2) :]
    return len(counted) - 1, counted[-1] - counted[0]


async def _feed(
    shard: RayShard,
    ring: Ring,
    slot: int,
    items: Sequence[PreparedItem],
    sizes: Sequence[int],
    ended: list[float],
    until: float,
) -> None:
    """One pack after the other through a slot; notes when each was read out of the ring."""
    while time.monotonic() < until or len(ended) < _LEAST_PACKS:
        layouts = await asyncio.to_thread(lay_out, items, ring.input(slot))
        reply = await shard.run(PackRequest(slot, _RUNG, layouts))
        assert all(reply.finite), "random weights give finite rows"
        await asyncio.to_thread(_copies, ring.output(slot), sizes)
        ended.append(time.monotonic())


def _copies(out: npt.NDArray[np.uint8], sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """Each item's rows in an array of its own, as requests get them."""
    ends = list(accumulate(sizes))
    return [out[end - size : end].copy() for end, size in zip(ends, sizes, strict=True)]

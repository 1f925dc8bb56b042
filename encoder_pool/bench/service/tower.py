"""The tower's own rate: the service's adapter, ladder, packer and runner in one process, fed from memory.

Photos are decoded before anything is timed and lie where the tower computes. The queue holds as many items
as one plan looks at, and each takes its place again when it is through, so that the packer always has what
it has in a service that is never idle. Nothing leaves the device. Runs in a process of its own, which the
device's memory is given back with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import torch

from encoder_pool.bench.device import Device, Repeats, open_device, timed
from encoder_pool.bench.machine import this_machine, versions
from encoder_pool.bench.results import Machine
from encoder_pool.bench.service.results import TowerRate
from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, Media, Modality, Pack
from encoder_pool.graphs.plan import Planner
from encoder_pool.graphs.runner import Batch, LadderRunner
from encoder_pool.pool.batcher import WINDOW
from encoder_pool.pool.bring_up import bring_up
from encoder_pool.pool.measured import Card, Subject
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import Adapter, StagedItem, Tower, adapter_class
from encoder_pool.weights import ensure

P = ParamSpec("P")
T = TypeVar("T")

_TRIAL_SHARE = 0.5
_REPLAYS = Repeats(most=15, least=3, budget_s=0.5, warm_up=1)


class OwnRates(NamedTuple):
    """The tower's rates by set, where we are, and what bears on speed there."""

    rates: Mapping[str, TowerRate]
    machine: Machine
    versions: Mapping[str, str]


def apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the work gives, in a process of its own that is gone afterwards."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *args, **kwargs).result()


def towers(config: PoolConfig) -> float:
    """How many towers by themselves the workers of all replicas come to: those that share a GPU are one."""
    workers = config.scaling.min_replicas * config.replica.workers
    return max(1.0, workers * config.gpus) if 0 < config.gpus < 1 else workers


def own_rates(config: PoolConfig, photos: Mapping[str, Sequence[Path]], seconds: float) -> OwnRates:
    """The tower's rate on each set of photos, for about so many seconds; without sets it is not loaded."""
    device = open_device(config.model.device)
    rates: dict[str, TowerRate] = {}
    if photos:
        torch.set_num_threads(config.shard.threads)
        fed = FedTower(config, device)
        rates = {name: fed.rate(paths, seconds) for name, paths in photos.items()}
    return OwnRates(rates, this_machine(device), versions())


class _Item(NamedTuple):
    staged: StagedItem
    cost: Cost
    tokens: int


class FedTower:
    """A tower as a shard loads, captures and measures it."""

    def __init__(self, config: PoolConfig, device: Device) -> None:
        checkpoint = ensure(config.model.checkpoint)
        adapter = adapter_class(config.model.adapter)(checkpoint)
        ladder = size_pool(config, adapter).ladder
        self._config = config
        self._adapter: Adapter = adapter
        self._device = device
        self._tower: Tower = adapter.load(config.model)
        self._runner: LadderRunner = device.runner(self._tower, ladder)
        subject = Subject.of(config, checkpoint, ladder)
        card = Card.cpu() if device.name == "cpu" else Card.gpu(torch.cuda.get_device_name())
        found = bring_up(subject, card, self._tower, self._runner, self._clock, lambda phase, fraction: None)
        self._planner = Planner(self._runner.ladder, found.table)

    def rate(self, paths: Sequence[Path], seconds: float) -> TowerRate:
        """Its own rate on these photos."""
        items = [self._item(path) for path in paths]
        count = round(self._trial(items, seconds * _TRIAL_SHARE) * seconds)
        self._runner.reset_counters()
        taken_s = self._drain(items, count)
        tally = self._runner.counters.total
        tokens = sum(item.tokens for item in items) / len(items)
        return TowerRate(
            items_s=tally.items / taken_s,
            tokens_s=tally.items / taken_s * tokens,
            mean_batch=tally.items / tally.runs,
            padding=tally.padding,
            replay_ms=self._replays(items),
        )

    def _clock(self) -> float:
        """As a shard measures its rungs: on a CPU, seconds of one thread."""
        if self._device.name == "cuda":
            return self._device.clock()
        return time.process_time() / self._config.shard.threads

    def _item(self, path: Path) -> _Item:
        media = Media(Modality.IMAGE, path.read_bytes(), path.name)
        prepared = self._adapter.prepare(media, self._config.limits)
        data = torch.from_numpy(prepared.data).to(self._device.torch_device)
        return _Item(StagedItem(data, prepared.grid), prepared.cost, prepared.tokens)

    def _trial(self, items: Sequence[_Item], seconds: float) -> float:
        """Items a second, pack by pack: about, and after whatever is slow the first time."""
        self._drain(items, 1)
        self._runner.reset_counters()
        taken_s = 0.0
        while taken_s == 0 or taken_s < seconds:
            taken_s += self._drain(items, 1)
        return self._runner.counters.total.items / taken_s

    def _drain(self, items: Sequence[_Item], count: int) -> float:
        """Seconds for at least so many items, and one pack, from a queue of WINDOW that is always full."""
        queue = [items[at % len(items)] for at in range(WINDOW)]
        started, done = self._device.clock(), 0
        while not done or done < count:
            pack = self._next(queue)
            members = [queue[member] for member in pack.members]
            self._run(members, pack.rung)
            done += len(members)
            chosen = set(pack.members)
            queue = [item for at, item in enumerate(queue) if at not in chosen] + members
        return self._device.clock() - started

    def _next(self, queue: Sequence[_Item]) -> Pack:
        return self._planner.next_pack([item.cost for item in queue])

    def _run(self, items: Sequence[_Item], rung: int | None) -> None:
        self._runner.run(self._batch(items), rung)

    def _batch(self, items: Sequence[_Item]) -> Batch:
        return Batch.of(self._tower, [item.staged for item in items], [item.cost for item in items])

    def _replays(self, items: Sequence[_Item]) -> tuple[float, ...]:
        """Milliseconds of each item alone; those of one cost are timed once."""
        by_cost: dict[Cost, float] = {}
        for item in items:
            if item.cost not in by_cost:
                by_cost[item.cost] = self._alone_ms(item)
        return tuple(by_cost[item.cost] for item in items)

    def _alone_ms(self, item: _Item) -> float:
        rung = self._next([item]).rung
        self._run([item], rung)
        batch = self._batch([item])

        def replay() -> object:
            return self._runner.run(batch, None) if rung is None else self._runner.recording(rung)()

        with torch.inference_mode():
            return timed(self._device.time_ms, replay, _REPLAYS).ms

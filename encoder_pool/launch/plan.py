"""What a pool will be, computed from its configuration before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, Pack, Rung
from encoder_pool.graphs.plan import CostTable, Planner, proportional
from encoder_pool.launch.errors import ConfigError
from encoder_pool.launch.file import ServiceFile
from encoder_pool.launch.weight_files import check_weight_files
from encoder_pool.pool.measured import Measured, Subject, latest
from encoder_pool.pool.sizing import Sizing, size_pool
from encoder_pool.towers.adapter import BUILTIN, Adapter, CountsWeights, adapter_class
from encoder_pool.weights import Progress, ensure
from encoder_pool.weights.progress import silent

QUEUE_DEPTHS = (1, 2, 4, 8, 16, 32)
DRAWS = 20
"""Queues drawn per depth: enough for a whole percent, and a plan within half a second."""

MAX_SIZES = 64
"""Different item sizes drawn from, evenly spread where the largest rung is of more units."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Sizes of one application: per worker unless it says otherwise.

    weight_bytes  of the tower, where it computes; None if only loading tells
    static_bytes  inputs and rows of the largest rung, which all rungs share; metadata comes on top
    measured      what a start of this configuration on this host has measured, if there was one
    padding       per number of waiting items of mixed sizes, the share of rows that is computed for nobody
    """

    config: PoolConfig
    unit: str
    sizing: Sizing
    weight_bytes: int | None
    static_bytes: int
    measured: Measured | None
    padding: dict[int, float]

    @property
    def num_replicas(self) -> int:
        """Replicas that are started at once."""
        return self.config.scaling.first_replicas

    @property
    def num_shards(self) -> int:
        """Shards that are started at once."""
        return self.num_replicas * self.config.shards

    @property
    def cpus(self) -> float:
        """CPUs that all replicas and shards reserve together."""
        return reserved_cpus(self.config)

    @property
    def gpus(self) -> float:
        """GPUs that all shards reserve together."""
        return reserved_gpus(self.config)

    @property
    def host_bytes(self) -> int:
        """Host memory of all rings, caches and weights; those of files pass through it also to a GPU.

        Of a tower that is split every rank reads all weights.
        """
        model, rings = self.config.model, self.config.replica.workers * self.sizing.ring_bytes
        is_made_on_gpu = model.device == "cuda" and model.load_format == "dummy"
        weights = 0 if is_made_on_gpu else self.num_shards * (self.weight_bytes or 0)
        return self.num_replicas * (rings + self.config.cache.max_bytes) + weights


def reserved_cpus(config: PoolConfig) -> float:
    """CPUs that all replicas and shards of a pool reserve together when it starts."""
    shards = config.shards * config.shard.cpus
    return config.scaling.first_replicas * (config.replica.cpus + shards)


def reserved_gpus(config: PoolConfig) -> float:
    """GPUs that all shards of a pool reserve together when it starts."""
    return config.scaling.first_replicas * config.shards * config.gpus


def plan_service(service: ServiceFile, progress: Progress = silent) -> list[PoolPlan]:
    """The plan of every application. Raises ConfigError, naming the file, the application and the key."""
    plans = []
    for application in service.applications:
        try:
            plans.append(plan_pool(application.config, progress))
        except ValueError as error:
            raise ConfigError(f"{service.path}: application '{application.name}': {error}") from error
    return plans


def plan_pool(config: PoolConfig, progress: Progress = silent) -> PoolPlan:
    """The plan of one application; brings built-in weights first. Raises ValueError, naming key or file.

    An adapter of one's own reads its weights as it likes; those of the built-in ones are checked, unless they
    are dummies, which are in no file.
    """
    checkpoint = ensure(config.model.checkpoint, progress)
    adapter = adapter_class(config.model.adapter)(checkpoint)
    sizing = size_pool(config, adapter)
    if config.model.adapter in BUILTIN and config.model.load_format != "dummy":
        check_weight_files(checkpoint)
    measured = latest(Subject.of(config, checkpoint, sizing.ladder))
    ladder = sizing.ladder if measured is None else measured.ladder
    table = proportional(ladder) if measured is None else measured.table
    padding = {
        depth: expected_padding(mixed_queues(adapter, ladder, depth), ladder, table) for depth in QUEUE_DEPTHS
    }
    top, itemsize = ladder[-1].capacity, config.model.dtype.storage.itemsize
    static_bytes = adapter.input_bytes(top) + top.out_rows * adapter.width * itemsize
    weight_bytes = _weight_bytes(adapter, checkpoint, itemsize)
    return PoolPlan(config, adapter.unit, sizing, weight_bytes, static_bytes, measured, padding)


def mixed_queues(adapter: Adapter, ladder: Sequence[Rung], depth: int) -> list[list[Cost]]:
    """Queues of so many items, sizes drawn evenly from those up to the largest rung's; always the same."""
    generator = np.random.default_rng(depth)
    sizes = _item_sizes(adapter, ladder[-1].budget)
    return [[sizes[at] for at in generator.integers(len(sizes), size=depth)] for _ in range(DRAWS)]


def _item_sizes(adapter: Adapter, largest: int) -> list[Cost]:
    """Costs of up to MAX_SIZES budgets from 1 to the largest, those that the adapter can represent."""
    sizes = []
    for budget in np.unique(np.linspace(1, largest, MAX_SIZES).astype(int)).tolist():
        with suppress(ValueError):
            sizes.append(adapter.capacity(budget))
    return sizes


def expected_padding(queues: Sequence[Sequence[Cost]], ladder: Sequence[Rung], table: CostTable) -> float:
    """Share of padded rows over all queues, each packed at once."""
    planner = Planner(ladder, table)
    asked = run = 0
    for queue in queues:
        asked += Cost.total(queue).patch_rows
        for pack in planner.plan(queue):
            run += _held(pack, queue, ladder).patch_rows
    return 1 - asked / run


def _held(pack: Pack, queue: Sequence[Cost], ladder: Sequence[Rung]) -> Cost:
    """What is run for a pack: its rung, or its items as they are."""
    if pack.rung is None:
        return Cost.total(queue[member] for member in pack.members)
    return ladder[pack.rung].capacity


def _weight_bytes(adapter: Adapter, checkpoint: Path, itemsize: int) -> int | None:
    """What the adapter counts; else the size of the files, if there are any."""
    if isinstance(adapter, CountsWeights):
        return adapter.num_weights * itemsize
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) or None

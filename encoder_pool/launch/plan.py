"""What a pool will be, computed from its configuration before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost
from encoder_pool.graphs.plan import plan, proportional
from encoder_pool.launch.errors import ConfigError
from encoder_pool.launch.file import ServiceFile
from encoder_pool.pool.sizing import Sizing, size_pool
from encoder_pool.towers.adapter import adapter_class
from encoder_pool.weights import Progress, ensure
from encoder_pool.weights.progress import silent

QUEUE_DEPTHS = (1, 2, 3, 5, 8, 13, 21, 34)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Sizes of one application: per worker unless it says otherwise.

    padding  per number of waiting smallest items, the share of rows that is computed for nobody
    """

    config: PoolConfig
    unit: str
    sizing: Sizing
    weight_bytes: int
    padding: dict[int, float]

    @property
    def num_replicas(self) -> int:
        """Replicas that are started at once."""
        return self.config.scaling.min_replicas

    @property
    def cpus(self) -> float:
        """CPUs that all replicas and shards reserve together."""
        return self.num_replicas * (self.config.replica.cpus + self.config.shard.cpus)

    @property
    def gpus(self) -> float:
        """GPUs that all shards reserve together."""
        return self.num_replicas * self.config.gpus

    @property
    def host_bytes(self) -> int:
        """Host memory of all rings and weights together; weights pass through it on their way to a GPU."""
        return self.num_replicas * (self.sizing.ring_bytes + self.weight_bytes)


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
    """The plan of one application; brings built-in weights first. Raises ValueError, naming the key."""
    checkpoint = ensure(config.model.checkpoint, progress)
    adapter = adapter_class(config.model.adapter)(checkpoint)
    sizing = size_pool(config, adapter)
    smallest = sizing.ladder[0].capacity
    padding = {depth: expected_padding(sizing, smallest, depth) for depth in QUEUE_DEPTHS}
    return PoolPlan(config, adapter.unit, sizing, _weight_bytes(checkpoint), padding)


def expected_padding(sizing: Sizing, item: Cost, depth: int) -> float:
    """Share of padded rows when so many items of this cost wait, packed as the service packs them."""
    packs = plan([item] * depth, sizing.ladder, proportional(sizing.ladder))
    asked = item.patch_rows * depth
    run = sum(
        item.patch_rows if pack.rung is None else sizing.ladder[pack.rung].capacity.patch_rows
        for pack in packs
    )
    return 1 - asked / run


def _weight_bytes(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))

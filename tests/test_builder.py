"""What the builder asks Ray for."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_pool.builder import bundles
from encoder_pool.config import PoolConfig


def reserved(device: str, ranks: int = 1, workers: int = 1, **shard: Any) -> list[dict[str, float]]:
    toy = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"}
    model = {**toy, "device": device, "tensor_parallel_size": ranks}
    replica = {"cpus": 0.5, "workers": workers}
    sections = {"model": model, "ladder": {"min": 1, "max": 4}, "replica": replica, "shard": shard}
    return bundles(PoolConfig.model_validate(sections))


def test_a_shard_on_the_cpu_reserves_no_gpu() -> None:
    assert reserved("cpu", cpus=2) == [{"CPU": 0.5}, {"CPU": 2}]


@pytest.mark.parametrize(("shard", "gpus"), [({}, 1.0), ({"gpus": 0.5}, 0.5)])
def test_a_shard_on_a_gpu_reserves_its_share_of_one(shard: dict[str, float], gpus: float) -> None:
    assert reserved("cuda", 1, 1, cpus=2, **shard) == [{"CPU": 0.5}, {"CPU": 2, "GPU": gpus}]


def test_every_rank_of_every_worker_reserves_what_a_shard_does() -> None:
    assert reserved("cuda", ranks=2, cpus=2) == [{"CPU": 0.5}, {"CPU": 2, "GPU": 1.0}, {"CPU": 2, "GPU": 1.0}]
    assert reserved("cuda", workers=2, gpus=0.5, cpus=2) == [{"CPU": 0.5}, *[{"CPU": 2, "GPU": 0.5}] * 2]
    assert reserved("cpu", ranks=2, workers=3, cpus=2) == [{"CPU": 0.5}, *[{"CPU": 2}] * 6]
    assert reserved("cpu", ranks=3, cpus=2) == [{"CPU": 0.5}, *[{"CPU": 2}] * 3]

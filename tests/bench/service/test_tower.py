"""The tower fed from memory, on a small one and a CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from encoder_pool.bench.device import open_device
from encoder_pool.bench.service.photos import PhotoSet
from encoder_pool.bench.service.tower import FedTower, apart, own_rates, towers
from encoder_pool.config import LadderConfig
from encoder_pool.core import DType
from encoder_pool.launch.file import read_service_file
from tests.gpu import needs_gpu

CONFIG = (
    read_service_file(Path(__file__).parents[3] / "serve_configs" / "qwen-tiny.yaml").applications[0].config
)


@pytest.fixture(scope="module")
def tower() -> FedTower:
    return FedTower(CONFIG.model_copy(update={"ladder": LadderConfig(budgets=(4, 16))}), open_device("cpu"))


def test_a_towers_rate_counts_the_items_that_came_through_its_packer(tower: FedTower, tmp_path: Path) -> None:
    photos = PhotoSet.named("56").write(3, tmp_path)  # 4 tokens each
    rate = tower.rate(photos, seconds=0.01)
    assert rate.tokens_s == pytest.approx(4 * rate.items_s)
    assert rate.items_s > 0
    assert rate.mean_batch >= 1
    assert 0 <= rate.padding < 1
    # All cost the same, so one was timed for all.
    assert rate.replay_ms == (rate.replay_ms[0],) * 3
    assert rate.replay_ms[0] > 0


def test_photos_of_different_sizes_have_replays_of_their_own(tower: FedTower, tmp_path: Path) -> None:
    photos = (*PhotoSet.named("56").write(1, tmp_path), *PhotoSet.named("112").write(1, tmp_path))
    rate = tower.rate(photos, seconds=0.01)
    small, large = rate.replay_ms
    assert small != large
    assert rate.tokens_s == pytest.approx(rate.items_s * (4 + 16) / 2)


def test_a_photo_that_fits_no_rung_is_run_eagerly_by_itself(tower: FedTower, tmp_path: Path) -> None:
    photos = PhotoSet.named("140").write(1, tmp_path)  # 25 tokens, and no rung has more than 16
    rate = tower.rate(photos, seconds=0.01)
    assert (rate.mean_batch, rate.padding) == (1, 0)
    assert rate.replay_ms[0] > 0


@pytest.mark.parametrize(
    ("device", "replicas", "workers", "gpus", "count"),
    [
        ("cpu", 1, 3, None, 3),
        ("cuda", 1, 2, None, 2),
        ("cuda", 1, 4, 0.5, 2),
        ("cuda", 1, 1, 0.5, 1),
        ("cuda", 4, 1, 0.25, 1),
        ("cuda", 2, 2, None, 4),
    ],
)
def test_workers_that_share_a_gpu_are_held_against_one_tower(
    device: str, replicas: int, workers: int, gpus: float | None, count: int
) -> None:
    model = CONFIG.model.model_copy(update={"device": device})
    replica = CONFIG.replica.model_copy(update={"workers": workers})
    shard = CONFIG.shard.model_copy(update={"gpus": gpus})
    scaling = CONFIG.scaling.model_copy(update={"min_replicas": replicas, "max_replicas": replicas})
    changed = {"model": model, "replica": replica, "shard": shard, "scaling": scaling}
    assert towers(CONFIG.model_copy(update=changed)) == count


@needs_gpu
def test_a_towers_rate_on_a_gpu(tmp_path: Path) -> None:
    model = CONFIG.model.model_copy(update={"device": "cuda", "dtype": DType.BFLOAT16})
    photos = {"mix": PhotoSet("mix", 56, 400).write(8, tmp_path)}
    found = own_rates(CONFIG.model_copy(update={"model": model}), photos, seconds=0.2)
    assert found.machine.card
    assert found.rates["mix"].items_s > 0
    assert min(found.rates["mix"].replay_ms) > 0


def test_without_photos_the_machine_is_told_and_no_tower_loaded() -> None:
    missing = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"checkpoint": "/nowhere"})})
    found = own_rates(missing, {}, 1.0)
    assert not found.rates
    assert found.machine.cores >= 1
    assert {"torch", "ray", "encoder-pool"} <= set(found.versions)


def test_work_apart_is_done_in_another_process() -> None:
    assert apart(os.getpid) != os.getpid()
    assert apart(divmod, 7, 2) == (3, 1)

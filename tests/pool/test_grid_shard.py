"""The shard with a real grid tower: bad data leaves it as it was, a device that is lost ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig, PoolConfig
from encoder_pool.core import Grid, Media, Modality, PreparedItem
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.staging import CudaStaging
from encoder_pool.pool.messages import PackReply, PackRequest, lay_out
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.shard import DEVICE_LOST, Shard
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.gpu import NEEDS_GPU, needs_gpu

PHOTO = (Path(__file__).parents[2] / "encoder_pool" / "demo" / "media" / "cat.jpg").read_bytes()
CHECKPOINT = "config:qwen2.5-vl-tiny"


class GridBench:
    """A shard with one photo to encode."""

    def __init__(self, device: str) -> None:
        folder = ensure(CHECKPOINT)
        model = {"name": "tiny", "adapter": "grid", "checkpoint": CHECKPOINT, "load_format": "dummy"}
        document = {"model": {**model, "device": device}, "ladder": {"min": 64, "max": 256}}
        config = PoolConfig.model_validate(document)
        adapter = GridAdapter(folder)
        sizing = size_pool(config, adapter)
        self.ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
        self.shard = Shard(config, folder, sizing.ladder, self.ring.address)
        self.shard.load()
        self.shard.capture()
        self.width = adapter.width
        self.photo = adapter.prepare(Media(Modality.IMAGE, PHOTO, ""), LimitsConfig())

    def run(self, item: PreparedItem, rung: int = -1) -> PackReply:
        position = rung % len(self.shard._ladder)
        return self.shard.run(PackRequest(0, position, lay_out([item], self.ring.input(0))))

    def rows(self) -> np.ndarray:
        """Of the photo, encoded now."""
        assert self.run(self.photo).finite == (True,)
        return self.ring.output(0).view(np.float32)[: self.photo.tokens * self.width].copy()

    def lose_the_device(self) -> None:
        """By a read out of bounds, in the next pack."""
        import torch

        stage = self.shard._tower.stage

        def reading_out_of_bounds(items: object) -> object:
            torch.zeros(1, device="cuda")[torch.tensor([1 << 30], device="cuda")]
            return stage(items)  # type: ignore[arg-type]

        self.shard._tower.stage = reading_out_of_bounds  # type: ignore[assignment, method-assign]

    def close(self) -> None:
        if isinstance(self.shard._staging, CudaStaging):
            self.shard._staging.close()
        self.ring.close()


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def bench(request: pytest.FixtureRequest) -> Iterator[GridBench]:
    bench = GridBench(request.param)
    yield bench
    bench.close()


@pytest.mark.parametrize("grid", [Grid(1, 2, 2), Grid(2, 4, 4), Grid(1, 3, 3)])
def test_an_array_that_does_not_fit_its_grid_leaves_the_shard_fit_for_the_next(
    bench: GridBench, grid: Grid
) -> None:
    before = bench.rows()
    with pytest.raises((ValueError, RuntimeError)):
        bench.run(replace(bench.photo, grid=grid))
    np.testing.assert_array_equal(bench.rows(), before)


def test_a_pack_beyond_its_rung_leaves_the_shard_fit_for_the_next(bench: GridBench) -> None:
    before = bench.rows()
    with pytest.raises(BatchMismatch, match="cost"):
        bench.run(bench.photo, rung=0)
    np.testing.assert_array_equal(bench.rows(), before)


CHILD = """
from dataclasses import replace
from encoder_pool.core import Grid
from tests.pool.test_grid_shard import GridBench

bench = GridBench("cuda")
before = bench.rows()
try:
    bench.run(replace(bench.photo, grid=Grid(1, 2, 2)))
except ValueError:
    print("raised")
print("same", (bench.rows() == before).all(), flush=True)
bench.lose_the_device()
bench.run(bench.photo)
print("survived")
"""


@needs_gpu
def test_a_lost_device_ends_the_process_and_bad_data_does_not() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout.splitlines() == ["raised", "same True"], child.stderr[-2000:]
    assert child.returncode == DEVICE_LOST, child.stderr[-2000:]

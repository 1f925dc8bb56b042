"""Towers small enough to measure in a test: one with windows, one with learned positions and deepstack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from encoder_pool.bench.device import CpuDevice
from encoder_pool.bench.floor import TowerShape, tower_shape
from encoder_pool.bench.inputs import random_images
from encoder_pool.bench.seed import SeedItem, SeedPolicy
from encoder_pool.bench.stock import StockTower
from encoder_pool.config import ModelConfig
from encoder_pool.core import Grid
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.towers.grid_processing import GridProcessor
from encoder_pool.weights import ensure

TINY = "config:qwen2.5-vl-tiny"
_QWEN3 = {
    "model_type": "qwen3_vl",
    "vision_config": {
        "depth": 3,
        "hidden_size": 48,
        "num_heads": 3,
        "intermediate_size": 70,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    },
}


def qwen3_folder(folder: Path) -> Path:
    """A checkpoint folder without weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_QWEN3))
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        constants = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16}
        (folder / name).write_text(json.dumps(constants))
    return folder


def folders(root: Path) -> tuple[Path, Path]:
    return ensure(TINY), qwen3_folder(root / "qwen3")


class Tower:
    """A stock tower on the CPU, and items for it."""

    def __init__(self, folder: Path) -> None:
        self.device = CpuDevice()
        self.folder = folder
        self.model = ModelConfig(
            name="tower", adapter="grid", checkpoint=str(folder), load_format="dummy", device="cpu"
        )
        self.shape: TowerShape = tower_shape(folder)
        self.geometry = self.shape.geometry
        module = load_encoder(family_of(folder)[0], folder, self.model).tower
        self.stock = StockTower(module, GridProcessor(folder).normalisation)
        self.adapter = GridAdapter(folder)
        self._ours = self.adapter.load(self.model)

    def grid(self, rows: int, columns: int) -> Grid:
        """So many output tokens down and across."""
        return Grid(1, rows * self.geometry.merge, columns * self.geometry.merge)

    def images(self, grids: Sequence[Grid]) -> list[StagedItem]:
        return random_images(grids, self.geometry, self.device.torch_device)

    def seed(self, bounds: tuple[int, int]) -> SeedPolicy:
        policy = SeedPolicy(self.stock.tower, self.geometry, bounds, self.device)
        policy.capture()
        return policy

    def seed_item(self, item: StagedItem) -> SeedItem:
        return SeedItem(self.stock.pixels(self._ours.stage([item])["patches"]), item.grid)

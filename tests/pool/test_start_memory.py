"""A shard loads its tower out of a whole model's checkpoint without ever having the rest in memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from encoder_pool.config import ModelConfig
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.weights import ensure

TINY = "config:qwen2.5-vl-tiny"
LANGUAGE_MODEL_BYTES = 400 << 20
SLACK_BYTES = 60 << 20
"""More than two starts of one process differ by, and little beside the language model."""

CHILD = """
import dataclasses, json, sys
from pathlib import Path
from encoder_pool.config import PoolConfig
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.shard import Shard
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import adapter_class
model = {"name": "tiny", "adapter": "grid", "checkpoint": sys.argv[1]}
config = PoolConfig.model_validate({"model": model, "ladder": {"budgets": [16]}})
sizing = size_pool(config, adapter_class("grid")(Path(sys.argv[1])))
ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
shard = Shard(config, Path(sys.argv[1]), sizing.ladder, ring.address)
shard.load()
memory = shard.capture().memory
print(json.dumps([memory.weights_bytes, memory.peak_rss_bytes]))
"""


class Start(NamedTuple):
    weights_bytes: int
    peak_rss_bytes: int


def start(checkpoint: Path) -> Start:
    """Of a shard in a process of its own."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(checkpoint)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return Start(*json.loads(child.stdout))


def checkpoint(folder: Path, language_model: dict[str, torch.Tensor]) -> Path:
    """The tiny tower, and a language model in the same file, before and after the tower's weights."""
    shutil.copytree(ensure(TINY), folder)
    model = ModelConfig(name="tiny", adapter="grid", checkpoint=TINY, load_format="dummy")
    tower = load_encoder(family_of(folder)[0], folder, model).tower
    weights = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    save_file(weights | language_model, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return start(checkpoint(tmp_path_factory.mktemp("alone") / "checkpoint", {}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Start:
    half = torch.zeros(LANGUAGE_MODEL_BYTES // 8)
    folder = tmp_path_factory.mktemp("whole")
    return start(checkpoint(folder / "checkpoint", {"lm_head.weight": half, "z.weight": half.clone()}))


def test_the_weights_are_the_towers_alone(alone: Start, whole: Start) -> None:
    assert alone.weights_bytes == whole.weights_bytes
    # Beside them two tables of frequencies, and the zeros that widen the MLPs.
    assert 4 * 1_335_328 <= whole.weights_bytes < 4 * 1_335_328 * 1.06


def test_the_rest_of_the_checkpoint_is_never_in_memory(alone: Start, whole: Start) -> None:
    assert whole.peak_rss_bytes - alone.peak_rss_bytes < SLACK_BYTES

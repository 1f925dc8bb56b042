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


def starting(checkpoint: Path) -> subprocess.Popen[str]:
    """A shard in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def started(child: subprocess.Popen[str]) -> Start:
    out, err = child.communicate(timeout=600)
    assert child.returncode == 0, err[-2000:]
    return Start(*json.loads(out))


def checkpoint(folder: Path, language_model: dict[str, torch.Tensor]) -> Path:
    """The tiny tower, and a language model in the same file, before and after the tower's weights."""
    shutil.copytree(ensure(TINY), folder)
    model = ModelConfig(name="tiny", adapter="grid", checkpoint=TINY, load_format="dummy")
    tower = load_encoder(family_of(folder)[0], folder, model).tower
    weights = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    save_file(weights | language_model, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Starts(NamedTuple):
    alone: Start
    whole: Start


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """With the tower alone and with the whole model, both at once."""
    folder = tmp_path_factory.mktemp("start")
    half = torch.zeros(LANGUAGE_MODEL_BYTES // 8)
    language_model = {"lm_head.weight": half, "z.weight": half.clone()}
    children = [
        starting(checkpoint(folder / "alone", {})),
        starting(checkpoint(folder / "whole", language_model)),
    ]
    return Starts(*map(started, children))


def test_the_weights_are_the_towers_alone(starts: Starts) -> None:
    assert starts.alone.weights_bytes == starts.whole.weights_bytes
    # Beside them two tables of frequencies, and the zeros that widen the MLPs.
    assert 4 * 1_335_328 <= starts.whole.weights_bytes < 4 * 1_335_328 * 1.06


def test_the_rest_of_the_checkpoint_is_never_in_memory(starts: Starts) -> None:
    assert starts.whole.peak_rss_bytes - starts.alone.peak_rss_bytes < SLACK_BYTES

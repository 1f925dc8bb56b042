"""The configurations that the package carries, as the towers read them."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import pytest
import torch
from transformers import AutoConfig

from encoder_pool.core import Part
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import configurations, ensure


class Size(NamedTuple):
    """Weights of tower and projector, pixels of a patch's side, columns of an embedding."""

    weights: int
    patch: int
    width: int


SIZES = {
    "qwen2-vl-7b": Size(675_759_104, 14, 3584),
    "qwen2.5-vl-7b": Size(676_550_144, 14, 3584),
    "qwen2.5-vl-tiny": Size(1_335_328, 14, 256),
    "qwen3-vl-8b": Size(576_388_336, 16, 4 * 4096),
    "qwen3.5-9b": Size(456_010_480, 16, 4096),
    "kimi-k2.5": Size(416_866_032 + 54_277_888, 14, 7168),
}


def test_all_sizes_are_checked() -> None:
    assert set(SIZES) == set(configurations.names())


@pytest.mark.parametrize("name", SIZES)
def test_a_configuration_is_one_that_an_adapter_takes(name: str) -> None:
    adapter = GridAdapter(ensure(f"config:{name}"))
    assert adapter.width == SIZES[name].width
    assert adapter.input_bytes(adapter.capacity(1)) >= 4 * 3 * SIZES[name].patch ** 2
    assert adapter.num_weights == SIZES[name].weights


@pytest.mark.parametrize("name", SIZES)
def test_the_stock_classes_have_the_published_number_of_weights(name: str) -> None:
    folder = ensure(f"config:{name}")
    family, _ = family_of(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    module = importlib.import_module(family.module)
    with torch.device("meta"):
        parts = [getattr(module, family.tower[1])._from_config(config.vision_config)]
        if family.projector:
            parts.append(getattr(module, family.projector[1])(config))
    assert sum(parameter.numel() for part in parts for parameter in part.parameters()) == SIZES[name].weights


def test_the_deepstack_levels_of_qwen3_vl_are_there() -> None:
    parts = GridAdapter(ensure("config:qwen3-vl-8b")).parts
    assert parts == (Part("merger", 4096), *(Part(f"deepstack.{level}", 4096) for level in range(3)))

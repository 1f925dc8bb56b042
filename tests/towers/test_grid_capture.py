"""What a recording of the captured region needs: no word to the host, and a tail that reaches nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from encoder_pool.core import Grid
from encoder_pool.towers import attention
from encoder_pool.towers.adapter import Metadata
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.towers.grid_tower import GridTower

from .cases import assert_close, model_config
from .grid_checkpoints import FAMILIES, GridCase

T = TypeVar("T")

GRIDS = (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2))
BUDGET = 128


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


def pessimal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """All that a fused kernel may do: rows it was not launched for are NaN, a NaN in any value spreads."""
    rows = torch.full_like(query, torch.nan)
    for start, end in pairwise(offsets.tolist()):
        stop = min(end, start + longest)
        scores = torch.einsum("qhd,khd->hqk", query[start:stop], key) * scale
        outside = torch.ones(len(key), dtype=torch.bool)
        outside[start:end] = False
        weights = scores.nan_to_num(0).masked_fill(outside, -torch.inf).softmax(dim=-1)
        rows[start:stop] = torch.einsum("hqk,khd->qhd", weights, value)
    return rows


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    """Known here alone: elsewhere whatever is registered is tried."""
    attention.register("pessimal", pessimal)
    yield
    del attention.KERNELS["pessimal"]


def on_kernel(case: GridCase, name: str) -> GridTower:
    """The case's tower with another attention kernel."""
    tower = case.adapter.load(model_config(attention=name))
    assert isinstance(tower, GridTower)
    return tower


def padded(case: GridCase) -> tuple[dict[str, torch.Tensor], Metadata]:
    """Items in the first rows of a rung, zeros after them."""
    capacity = case.adapter.capacity(BUDGET)
    patches = case.tower.stage(case.items(GRIDS))["patches"]
    static = torch.zeros(capacity.patch_rows, patches.shape[1], dtype=torch.uint8)
    static[: len(patches)] = patches
    return {"patches": static}, case.tower.metadata(GRIDS, capacity)


def on_fakes(forward: Callable[..., T], case: GridCase) -> T:
    """The forward of the case's items, on tensors that have no values."""
    inputs, metadata = padded(case)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.inference_mode():
        fakes = {
            key: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for key, value in metadata.items()
        }
        return forward({key: mode.from_tensor(value) for key, value in inputs.items()}, fakes)


def test_the_captured_region_never_asks_for_a_value(case: GridCase) -> None:
    assert tuple(on_fakes(case.tower.forward, case).shape) == (BUDGET, case.adapter.width)


def test_the_stock_attention_would_ask(case: GridCase) -> None:
    family, _ = family_of(case.folder)
    stock = load_encoder(family, case.folder, model_config()).tower

    def forward(inputs: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> object:
        pixels = inputs["patches"].float()
        pixels = pixels.view(-1, 3, case.stock.patch, case.stock.patch) if case.is_clip else pixels
        return stock(pixels, grid_thw=None, **metadata)

    with pytest.raises(DataDependentOutputException):
        on_fakes(forward, case)


def test_on_a_kernel_that_spreads_nan_the_covered_tail_reaches_nobody(case: GridCase) -> None:
    inputs, metadata = padded(case)
    expected = torch.cat([case.reference(item) for item in case.items(GRIDS)])
    with torch.inference_mode():
        rows = on_kernel(case, "pessimal").forward(inputs, metadata)
    assert rows.isfinite().all()
    assert_close(rows[: len(expected)], expected)


def test_on_that_kernel_a_tail_of_nobody_would_reach_the_items(case: GridCase) -> None:
    inputs, metadata = padded(case)
    rows = sum(grid.t * grid.h * grid.w for grid in GRIDS)
    offsets = metadata["cu_seqlens"]
    assert isinstance(offsets, torch.Tensor)
    uncovered = {**metadata, "cu_seqlens": offsets.clamp(max=rows)}
    with torch.inference_mode():
        assert on_kernel(case, "pessimal").forward(inputs, uncovered)[0].isnan().any()


def test_an_unknown_kernel_is_refused(case: GridCase) -> None:
    with pytest.raises(ValueError, match=r"model\.attention 'fast' is no kernel of this machine.*masked"):
        on_kernel(case, "fast")


def test_heads_widened_by_zeros_give_the_same_rows(case: GridCase) -> None:
    inputs, metadata = padded(case)
    wide = case.adapter.load(model_config())
    assert isinstance(wide, GridTower)
    stock: Any = wide.encoder.tower
    for block in stock.blocks if hasattr(stock, "blocks") else stock.layers:
        block.attention = attention.OneKernel("masked", block.attention.width(1, 1) + 8)
    with torch.inference_mode():
        assert_close(wide.forward(inputs, metadata), case.tower.forward(inputs, metadata))


def test_the_masked_kernel_is_attention_within_each_sequence() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(10, 2, 4, generator=generator) for _ in range(3))
    offsets = torch.tensor([0, 3, 3, 10, 10], dtype=torch.int32)
    rows = attention.masked(query, key, value, offsets, 7, 0.5)
    for start, end in ((0, 3), (3, 10)):
        part = slice(start, end)
        weights = (torch.einsum("qhd,khd->hqk", query[part], key[part]) * 0.5).softmax(dim=-1)
        torch.testing.assert_close(rows[part], torch.einsum("hqk,khd->qhd", weights, value[part]))

"""Fused blocks against the stock ones of every family, alone and in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from encoder_pool.towers.attention import OneKernel, masked
from encoder_pool.towers.fused import products
from encoder_pool.towers.fused.block import Between, FusedBlock
from encoder_pool.towers.fused.operations import Activation, PlainOperations
from encoder_pool.towers.loading import bytes_of
from tests.towers.cases import assert_close
from tests.towers.grid_checkpoints import FAMILIES, HIDDEN

from .operands import normal
from .stock_towers import added_bytes, blocks_of, stock_tower

ROWS, HEADS, WIDTH = 20, 3, 16


@pytest.fixture(params=FAMILIES)
def tower(request: pytest.FixtureRequest) -> nn.Module:
    """With an MLP that has not as many columns as products like; Qwen2-VL's has 96 anyway."""
    return stock_tower(request.param, **({} if request.param == "qwen2_vl" else {"intermediate_size": 70}))


class Wide:
    """The masked kernel for heads wider than they are. Remembers what it was given."""

    kernels: Mapping[str, str] = {}

    def __init__(self, width: int) -> None:
        self._width = width
        self.seen: list[torch.Tensor] = []

    def width(self, rows: int, longest: int) -> int:
        return self._width

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        self.seen += [query, key, value]
        return masked(query, key, value, offsets, longest, scale)


def fused(
    stock: nn.Module,
    tower: nn.Module,
    before: Between | None = None,
    after: Between | None = None,
    attention: Wide | None = None,
) -> FusedBlock:
    config: Any = tower.config
    return FusedBlock(
        stock,
        Activation.named(config.hidden_act),
        before,
        after,
        PlainOperations(),
        attention or OneKernel("masked", WIDTH),
    )


def run(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Two sequences, of 7 and 13 rows."""
    angles = normal(ROWS, WIDTH // 2, seed=1).repeat(1, 2)
    with torch.inference_mode():
        rows: torch.Tensor = block(
            hidden,
            cu_seqlens=torch.tensor([0, 7, ROWS], dtype=torch.int32),
            position_embeddings=(angles.cos(), angles.sin()),
            max_seqlen=13,
            use_cache="whatever else a tower hands on",
        )
    return rows


def test_a_block_gives_the_rows_of_the_stock_block_in_the_memory_of_its_own(tower: nn.Module) -> None:
    first = blocks_of(tower)[0]
    hidden = normal(ROWS, HIDDEN)
    expected = run(first, hidden.clone())
    rows = run(fused(first, tower), hidden)
    assert rows.data_ptr() == hidden.data_ptr()
    assert_close(rows, expected)


def test_blocks_in_a_row_hand_the_last_sum_on(tower: nn.Module) -> None:
    first, second, third = blocks_of(tower)[:3]
    expected = normal(ROWS, HIDDEN)
    for stock in (first, second, third):
        expected = run(stock, expected)
    early, late = Between(), Between()
    rows = normal(ROWS, HIDDEN)
    for ours in (
        fused(first, tower, after=early),
        fused(second, tower, early, late),
        fused(third, tower, before=late),
    ):
        rows = run(ours, rows)
    assert_close(rows, expected)
    for between in (early, late):
        with pytest.raises(AttributeError):
            between.take()


def test_columns_that_count_nothing_are_added_and_change_nothing(
    tower: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = blocks_of(tower)[0]
    padded = fused(first, tower)
    monkeypatch.setattr(products, "MLP_MULTIPLE", 1)
    as_it_is = fused(first, tower)
    assert bytes_of(as_it_is) == bytes_of(first)
    assert_close(run(padded, normal(ROWS, HIDDEN)), run(as_it_is, normal(ROWS, HIDDEN)))


def test_all_weights_of_a_block_are_its_own_also_those_that_were_padded(tower: nn.Module) -> None:
    first = blocks_of(tower)[0]
    assert added_bytes(first) > 0
    assert bytes_of(fused(first, tower)) == bytes_of(first) + added_bytes(first)


def test_heads_widened_by_zeros_change_nothing(tower: nn.Module) -> None:
    first, wide = blocks_of(tower)[0], Wide(WIDTH + 8)
    expected = run(first, normal(ROWS, HIDDEN))
    ours = fused(first, tower, attention=wide)
    own = bytes_of(ours)
    assert_close(run(ours, normal(ROWS, HIDDEN)), expected)
    assert {tensor.shape for tensor in wide.seen} == {(ROWS, HEADS, WIDTH + 8)}
    assert all((tensor[..., WIDTH:] == 0).all() for tensor in wide.seen)
    assert bytes_of(ours) == own + 4 * HIDDEN * HEADS * (WIDTH + 8), "the wider product is a weight too"
    run(ours, normal(ROWS, HIDDEN))
    assert bytes_of(ours) == own + 4 * HIDDEN * HEADS * (WIDTH + 8), "and made once"

"""Positions that are summed at once, in the place of a table that a stock tower sums itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from encoder_pool.towers.fused.operations import PlainOperations
from encoder_pool.towers.fused.positions import InterpolatedPositions, Taps
from encoder_pool.towers.loading import bytes_of
from tests.towers.cases import assert_close

from .operands import taps


def embedding(table: torch.Tensor) -> nn.Embedding:
    stock = nn.Embedding(*table.shape)
    stock.weight.data = table
    return stock.requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 257])
def test_a_stock_tower_sums_one_tap_to_what_it_sums_many_to(rows: int) -> None:
    given = taps(rows, 41)
    stock = embedding(given.table)
    positions = InterpolatedPositions(stock, PlainOperations())

    def as_stock_has_it(table: nn.Module, indices: object, weights: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = (table(indices) * weights[:, :, None]).sum(1)
        return summed

    expected = as_stock_has_it(stock, given.indices, given.weights)
    ours = as_stock_has_it(positions, Taps(given.indices, given.weights), torch.ones(1, 1))
    assert_close(ours, expected)


def test_the_table_counts_as_a_weight_and_stays_in_its_memory() -> None:
    stock = embedding(taps(1, 41).table)
    positions = InterpolatedPositions(stock, PlainOperations())
    assert bytes_of(positions) == bytes_of(stock)
    assert positions.table.data_ptr() == stock.weight.data_ptr()

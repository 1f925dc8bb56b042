"""The products of a stock block: its linear layers' numbers, in the layout that a fused block wants.

Knows where the families keep them, and not what is computed between them. Of a tower that is split, a rank
has some of the heads and some of the MLP's columns: outputs of the product before, inputs of the one behind,
whose results are then added up. A bias of what is added up is the first rank's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from encoder_pool.towers.adapter import ALONE, Ranks

MLP_MULTIPLE = 64
"""Products whose width is no multiple of it miss the fast kernels: 3420 columns take three times as long."""


class Product(NamedTuple):
    """A linear layer's numbers. weight (O, C), bias (O,)."""

    weight: torch.Tensor
    bias: torch.Tensor

    @staticmethod
    def of(*stock: nn.Linear) -> Product:
        """The layers' numbers, their outputs side by side."""
        if len(stock) == 1:
            return Product(stock[0].weight.detach(), stock[0].bias.detach())
        return Product(torch.cat([one.weight for one in stock]), torch.cat([one.bias for one in stock]))

    def outputs_of(self, ranks: Ranks) -> Product:
        """Those that fall to this rank, in memory of their own."""
        if ranks.count == 1:
            return self
        return Product(*(numbers.chunk(ranks.count)[ranks.rank].clone() for numbers in self))

    def inputs_of(self, ranks: Ranks) -> Product:
        """Those that fall to this rank, in memory of their own."""
        if ranks.count == 1:
            return self
        weight = self.weight.chunk(ranks.count, dim=1)[ranks.rank].clone(
            memory_format=torch.contiguous_format
        )
        return Product(weight, self.bias if ranks.rank == 0 else torch.zeros_like(self.bias))

    def with_more_outputs(self, count: int) -> Product:
        """And as many that are zero."""
        return Product(F.pad(self.weight, (0, 0, 0, count)), F.pad(self.bias, (0, count)))

    def with_more_inputs(self, count: int) -> Product:
        """And as many that count nothing."""
        return Product(F.pad(self.weight, (0, count)), self.bias)


def heads_of(stock: Any, ranks: Ranks = ALONE) -> Product:
    """Queries, keys and values of this rank's heads in one product, values that rotate together side by side.

    Stock rotates value i with value i + D / 2. Moving both, in queries and keys alike, changes no product of
    the two.
    """
    parts = (stock.qkv,) if hasattr(stock, "qkv") else (stock.q_proj, stock.k_proj, stock.v_proj)
    own = (_of_rank(numbers, ranks) for numbers in Product.of(*parts))
    return Product(*(_with_pairs(numbers, stock.num_heads // ranks.count) for numbers in own))


def _of_rank(numbers: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """(3 * H * D, ...) -> (3 * H * D / count, ...): the same heads of the queries, keys and values."""
    return numbers.view(3, ranks.count, -1, *numbers.shape[1:])[:, ranks.rank].flatten(0, 1)


def _with_pairs(numbers: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(3 * H * D, ...) with the halves of each query's and key's D interleaved."""
    heads = numbers.reshape(3, num_heads, 2, -1, *numbers.shape[1:]).clone()
    heads[:2] = heads[:2].transpose(2, 3).reshape_as(heads[:2])
    return heads.view_as(numbers)


def mlp_of(stock: Any, ranks: Ranks = ALONE) -> tuple[Product, Product]:
    """The two products around this rank's columns, gates before values if the activation is a gated one."""
    firsts, last = _linears_of(stock)
    missing = -(last.in_features // ranks.count) % MLP_MULTIPLE
    if ranks.count == 1 and not missing:
        return Product.of(*firsts), Product.of(last)
    padded = [Product.of(first).outputs_of(ranks).with_more_outputs(missing) for first in firsts]
    up = Product(torch.cat([one.weight for one in padded]), torch.cat([one.bias for one in padded]))
    return up, Product.of(last).inputs_of(ranks).with_more_inputs(missing)


def _linears_of(stock: Any) -> tuple[tuple[nn.Linear, ...], nn.Linear]:
    """Those before and the one behind the activation, by the names that the families give them."""
    if hasattr(stock, "gate_proj"):
        return (stock.gate_proj, stock.up_proj), stock.down_proj
    if hasattr(stock, "linear_fc1"):
        return (stock.linear_fc1,), stock.linear_fc2
    return (stock.fc1,), stock.fc2

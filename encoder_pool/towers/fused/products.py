"""The products of a stock block: its linear layers' numbers, in the layout that a fused block wants.

Knows where the families keep them, and not what is computed between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

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

    def with_more_outputs(self, count: int) -> Product:
        """And as many that are zero."""
        return Product(F.pad(self.weight, (0, 0, 0, count)), F.pad(self.bias, (0, count)))

    def with_more_inputs(self, count: int) -> Product:
        """And as many that count nothing."""
        return Product(F.pad(self.weight, (0, count)), self.bias)


def heads_of(stock: Any) -> Product:
    """Queries, keys and values in one product, the two values that rotate together side by side.

    Stock rotates value i with value i + D / 2. Moving both, in queries and keys alike, changes no product of
    the two.
    """
    parts = (stock.qkv,) if hasattr(stock, "qkv") else (stock.q_proj, stock.k_proj, stock.v_proj)
    stacked = Product.of(*parts)
    return Product(*(_with_pairs(numbers, stock.num_heads) for numbers in stacked))


def _with_pairs(numbers: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(3 * H * D, ...) with the halves of each query's and key's D interleaved."""
    heads = numbers.reshape(3, num_heads, 2, -1, *numbers.shape[1:]).clone()
    heads[:2] = heads[:2].transpose(2, 3).reshape_as(heads[:2])
    return heads.view_as(numbers)


def mlp_of(stock: Any) -> tuple[Product, Product]:
    """The two products around the activation, gates before values if it is a gated one."""
    firsts, last = _linears_of(stock)
    missing = -last.in_features % MLP_MULTIPLE
    if not missing:
        return Product.of(*firsts), Product.of(last)
    padded = [Product.of(first).with_more_outputs(missing) for first in firsts]
    up = Product(torch.cat([one.weight for one in padded]), torch.cat([one.bias for one in padded]))
    return up, Product.of(last).with_more_inputs(missing)


def _linears_of(stock: Any) -> tuple[tuple[nn.Linear, ...], nn.Linear]:
    """Those before and the one behind the activation, by the names that the families give them."""
    if hasattr(stock, "gate_proj"):
        return (stock.gate_proj, stock.up_proj), stock.down_proj
    if hasattr(stock, "linear_fc1"):
        return (stock.linear_fc1,), stock.linear_fc2
    return (stock.fc1,), stock.fc2

"""A block of a stock tower with the same weights and the same arithmetic, in eight launches.

The families' blocks differ in their norm (LayerNorm, RMSNorm), their activation (gelu, quick gelu, gated silu)
and in whether queries, keys and values have one product or three: read off the stock block here, once. The
residual stream is updated in place: a norm leaves in it the bias of the product that is then added to it.

Zeros make widths even, exactly: columns of the MLP that nothing reads, values of a head that add nothing to
any product. Knows no metadata, no checkpoint, and nothing around the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from encoder_pool.towers.attention import Attention
from encoder_pool.towers.fused.operations import Norm, Operations

MLP_MULTIPLE = 64
"""Products whose width is no multiple of it miss the fast kernels: 3420 columns take three times as long."""


class Between:
    """The residual stream from one block to the next: what the first computed and nobody has added yet."""

    branch: torch.Tensor

    def take(self) -> torch.Tensor:
        """The branch, for whoever adds it; the memory is then theirs."""
        branch = self.branch
        del self.branch
        return branch


class FusedBlock(nn.Module):
    """One block. It takes over the stock block's weights; what it copies, the stock block should lose.

    before, after  what it shares with its neighbours: None for the first block, and wherever something other
                   than the next block reads the rows that this one returns
    """

    def __init__(
        self,
        stock: nn.Module,
        activation: str,
        before: Between | None,
        after: Between | None,
        operations: Operations,
        attention: Attention,
    ) -> None:
        super().__init__()
        block: Any = stock
        self._before, self._after = before, after
        self._operations = operations
        self._attention = attention
        self._num_heads: int = block.attn.num_heads
        self._scale: float = block.attn.scaling
        self._norms = Norm.of(block.norm1), Norm.of(block.norm2)
        self._heads = _heads_of(block.attn)
        self._joined = _Joined(Product.of(block.attn.proj), self._num_heads)
        self._up, self._down = _mlp_of(block.mlp)
        self._activate = _activations(operations)[activation]

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        max_seqlen: int,
        **_: Any,
    ) -> torch.Tensor:
        """The stock block's signature: (T, C) in, and the same memory out."""
        rows = len(hidden_states)
        branch = None if self._before is None else self._before.take()
        normed = self._operations.norm(hidden_states, branch, self._norms[0])
        heads = F.linear(normed, *self._heads).view(rows, 3, self._num_heads, -1)
        width = self._attention.width(rows, max_seqlen)
        query, key, value = self._operations.rotate(heads, *position_embeddings, width).unbind(1)
        attended = self._attention(query, key, value, cu_seqlens, max_seqlen, self._scale)
        branch = F.linear(attended.reshape(rows, -1), *self._joined.of(width))
        normed = self._operations.norm(hidden_states, branch, self._norms[1])
        branch = F.linear(self._activate(normed, *self._up), *self._down)
        if self._after is None:
            return hidden_states.add_(branch)
        self._after.branch = branch
        return hidden_states


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


def _heads_of(stock: Any) -> Product:
    """Queries, keys and values in one product, the two values that rotate together side by side.

    Stock rotates value i with value i + D / 2. Moving both, in queries and keys alike, changes no product of
    the two.
    """
    parts = (stock.qkv,) if hasattr(stock, "qkv") else (stock.q_proj, stock.k_proj, stock.v_proj)
    stacked = Product.of(*parts)
    return Product(*(_with_pairs(numbers, stock.num_heads) for numbers in stacked))


def _with_pairs(numbers: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(3 * H * D, ...) with the halves of each query's and key's D interleaved."""
    heads = numbers.unflatten(0, (3, num_heads, 2, -1)).clone()
    heads[:2] = heads[:2].transpose(2, 3).reshape_as(heads[:2])
    return heads.flatten(0, 3)


class _Joined:
    """The product that joins the heads, for heads that may have been widened by zeros."""

    def __init__(self, product: Product, num_heads: int) -> None:
        self._num_heads = num_heads
        self._given = product.weight.shape[1] // num_heads
        self._of_width = {self._given: product}

    def of(self, width: int) -> Product:
        """For heads of so many values. Made when first asked for, which a warm-up does."""
        if width not in self._of_width:
            product = self._of_width[self._given]
            heads = product.weight.unflatten(1, (self._num_heads, self._given))
            weight = F.pad(heads, (0, width - self._given)).flatten(1)
            self._of_width[width] = Product(weight, product.bias)
        return self._of_width[width]


def _mlp_of(stock: Any) -> tuple[Product, Product]:
    """The two products around the activation, gates before values if it is a gated one."""
    if hasattr(stock, "gate_proj"):
        firsts, last = (stock.gate_proj, stock.up_proj), stock.down_proj
    elif hasattr(stock, "linear_fc1"):
        firsts, last = (stock.linear_fc1,), stock.linear_fc2
    else:
        firsts, last = (stock.fc1,), stock.fc2
    missing = -last.in_features % MLP_MULTIPLE
    if not missing:
        return Product.of(*firsts), Product.of(last)
    padded = [Product.of(first).with_more_outputs(missing) for first in firsts]
    up = Product(torch.cat([one.weight for one in padded]), torch.cat([one.bias for one in padded]))
    return up, Product.of(last).with_more_inputs(missing)


def _activations(operations: Operations) -> dict[str, Activation]:
    """By the name that config.json gives them."""
    return {
        "gelu_pytorch_tanh": operations.gelu_linear,
        "quick_gelu": operations.quick_gelu_linear,
        "silu": lambda rows, weight, bias: operations.gated_silu(F.linear(rows, weight, bias)),
    }


Activation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of the rows' product with a weight, plus a bias."""

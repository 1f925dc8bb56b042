"""A block of a stock tower with the same weights and the same arithmetic, in eight launches.

The families' blocks differ in their norm (LayerNorm, RMSNorm), their activation (gelu, quick gelu, gated
silu) and in whether queries, keys and values have one product or three: read off the stock block here, once.
The residual stream is updated in place, and each sum is made by the norm that reads it next.

Zeros make widths even, exactly: columns of the MLP that count nothing, values of a head that add nothing to
any product. Knows no metadata, no checkpoint, and nothing around the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from encoder_pool.towers.attention import Attention
from encoder_pool.towers.fused.operations import Norm, Operations

MLP_MULTIPLE = 64
"""Products whose width is no multiple of it miss the fast kernels: 3420 columns take three times as long."""


class Between:
    """The residual stream from one block to the next: what the first computed and nobody has added yet.

    What a forward leaves that raised before it was taken, the next one replaces.
    """

    branch: torch.Tensor

    def take(self) -> torch.Tensor:
        """The branch, for whoever adds it; the memory is then theirs."""
        branch = self.branch
        del self.branch
        return branch


class FusedBlock(nn.Module):
    """One block. It takes over the stock block's weights; what it copies, the stock block should lose.

    attention      chooses a kernel for every length
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
        self.attention = attention
        self._num_heads: int = block.attn.num_heads
        self._scale: float = block.attn.scaling
        self._norms = Norm.of(block.norm1), Norm.of(block.norm2)
        self._heads = _heads_of(block.attn)
        self._joined = _Joined(Product.of(block.attn.proj), self._num_heads)
        self._up, self._down = _mlp_of(block.mlp)
        self._activate = _activation_of(activation, operations)
        for product in (self._heads, self._joined.of(self._joined.given), self._up, self._down):
            self._own(product)
        for norm in self._norms:
            self._own((norm.weight, norm.bias))

    def _own(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Let the tensors count as the module's."""
        for tensor in tensors:
            if tensor is not None:
                self.register_buffer(f"own_{len(self._buffers)}", tensor, persistent=False)

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
        width = self.attention.width(rows, max_seqlen)
        query, key, value = self._operations.rotate(heads, *position_embeddings, width).unbind(1)
        attended = self.attention(query, key, value, cu_seqlens, max_seqlen, self._scale)
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
    heads = numbers.reshape(3, num_heads, 2, -1, *numbers.shape[1:]).clone()
    heads[:2] = heads[:2].transpose(2, 3).reshape_as(heads[:2])
    return heads.view_as(numbers)


class _Joined(nn.Module):
    """The product that joins the heads, for heads that may have been widened by zeros.

    given  values of a head before that
    """

    def __init__(self, product: Product, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.given = product.weight.shape[1] // num_heads
        self._of_width = {self.given: product}

    def of(self, width: int) -> Product:
        """For heads of so many values. Made when first asked for, which a warm-up does."""
        if width not in self._of_width:
            product = self._of_width[self.given]
            heads = product.weight.view(-1, self._num_heads, self.given)
            weight = F.pad(heads, (0, width - self.given)).flatten(1)
            self.register_buffer(f"of_{width}", weight, persistent=False)
            self._of_width[width] = Product(weight, product.bias)
        return self._of_width[width]


def _mlp_of(stock: Any) -> tuple[Product, Product]:
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


def _activation_of(name: str, operations: Operations) -> Activation:
    """By the name that config.json gives it. Raises ValueError for one that is not here."""
    activations: dict[str, Activation] = {
        "gelu_pytorch_tanh": operations.gelu_linear,
        "quick_gelu": operations.quick_gelu_linear,
        "silu": lambda rows, weight, bias: operations.gated_silu(F.linear(rows, weight, bias)),
    }
    if name not in activations:
        known = ", ".join(sorted(activations))
        raise ValueError(f"model.checkpoint: config.json has hidden_act '{name}'; blocks know {known}")
    return activations[name]


Activation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of the rows' product with a weight, plus a bias."""

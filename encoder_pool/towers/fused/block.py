"""A block of a stock tower with the same weights and the same arithmetic, in eight launches or a few more.

The families' blocks differ in their norm (LayerNorm, RMSNorm), their activation (gelu, quick gelu, gated
silu) and in whether queries, keys and values have one product or three: read off the stock block here, once.
The residual stream is updated in place, and each sum is made by the norm that reads it next.

Of a tower that is split, a block has this rank's heads and columns, and two sums over the ranks.

Zeros make widths even, exactly: columns of the MLP that count nothing, values of a head that add nothing to
any product. Knows no metadata, no checkpoint, and nothing around the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from encoder_pool.towers.adapter import ALONE, Ranks
from encoder_pool.towers.attention import Attention
from encoder_pool.towers.fused.operations import Activation, Norm, Operations
from encoder_pool.towers.fused.products import Product, heads_of, mlp_of


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

    attention      chooses a kernel for every length
    before, after  what it shares with its neighbours: None for the first block, and wherever something other
                   than the next block reads the rows that this one returns
    ranks          that the block is split over
    """

    def __init__(
        self,
        stock: nn.Module,
        activation: Activation,
        before: Between | None,
        after: Between | None,
        operations: Operations[Any, Any],
        attention: Attention,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        block: Any = stock
        self._before, self._after = before, after
        self._operations = operations
        self.attention = attention
        self._ranks = ranks
        self._num_heads: int = block.attn.num_heads // ranks.count
        self._scale: float = block.attn.scaling
        self._norms = Norm.of(block.norm1), Norm.of(block.norm2)
        self._heads = operations.weight(heads_of(block.attn, ranks))
        self._joined = Joined(Product.of(block.attn.proj).inputs_of(ranks), self._num_heads, operations)
        self._up, self._down = (operations.weight(product) for product in mlp_of(block.mlp, ranks))
        self._activation = activation
        for numbers in (self._heads, self._up, self._down, *self._norms):
            own(self, numbers)

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        max_seqlen: int,
        **_: Any,
    ) -> torch.Tensor:
        """The stock block's signature: (T, C) in, and the same memory out."""
        operations, rows = self._operations, len(hidden_states)
        branch = None if self._before is None else self._before.take()
        normed = operations.norm(hidden_states, branch, self._norms[0])
        heads = operations.linear(normed, self._heads).view(rows, 3, self._num_heads, -1)
        width = self.attention.width(rows, max_seqlen)
        query, key, value = operations.rotate(heads, *position_embeddings, width).unbind(1)
        attended = self.attention(query, key, value, cu_seqlens, max_seqlen, self._scale)
        attended = attended.reshape(rows, -1)
        branch = self._ranks.add_up(operations.linear(operations.operand(attended), self._joined.of(width)))
        normed = operations.norm(hidden_states, branch, self._norms[1])
        activated = operations.activated(self._activation, normed, self._up)
        branch = self._ranks.add_up(operations.linear(activated, self._down))
        if self._after is None:
            return hidden_states.add_(branch)
        self._after.branch = branch
        return hidden_states


class Joined(nn.Module):
    """The product that joins the heads, for heads that may have been widened by zeros."""

    def __init__(self, product: Product, num_heads: int, operations: Operations[Any, Any]) -> None:
        super().__init__()
        self._product = product
        self._num_heads = num_heads
        self._operations = operations
        self._of_width: dict[int, Any] = {}
        self.of(product.weight.shape[1] // num_heads)

    def of(self, width: int) -> Any:
        """The weight for heads of so many values. Made when first asked for, which a warm-up does."""
        if width not in self._of_width:
            given = self._product.weight.shape[1] // self._num_heads
            heads = self._product.weight.view(-1, self._num_heads, given)
            wide = Product(F.pad(heads, (0, width - given)).flatten(1), self._product.bias)
            self._of_width[width] = self._operations.weight(self._product if width == given else wide)
            own(self, self._of_width[width])
        return self._of_width[width]


def own(module: nn.Module, numbers: Iterable[Any]) -> None:
    """Let the tensors among the numbers count as the module's."""
    for number in numbers:
        if isinstance(number, torch.Tensor):
            module.register_buffer(f"own_{len(module._buffers)}", number, persistent=False)

"""Puts fused blocks in the place of a stock tower's own."""

from __future__ import annotations

from typing import Any

from torch import nn

from encoder_pool.towers.attention import Attention
from encoder_pool.towers.fused.block import Between, FusedBlock
from encoder_pool.towers.fused.operations import Operations


def fuse(tower: nn.Module, operations: Operations, attention: Attention) -> None:
    """Replace every block of the tower. Each stock block is let go before the next is copied."""
    stock: Any = tower
    blocks = stock.blocks if hasattr(stock, "blocks") else stock.layers
    read = {*getattr(stock.config, "deepstack_visual_indexes", ()), len(blocks) - 1}
    before = None
    for at, block in enumerate(blocks):
        after = None if at in read else Between()
        blocks[at] = FusedBlock(block, stock.config.hidden_act, before, after, operations, attention)
        before = after

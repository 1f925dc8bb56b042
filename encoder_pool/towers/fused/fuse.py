"""Makes a stock tower fast, in place: fused blocks, positions, patch embedding; kernels for its device.

Everything around them, above all the tower's own forward, stays stock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from encoder_pool.config import ModelConfig
from encoder_pool.core import DType
from encoder_pool.towers.adapter import ALONE, Metadata, Ranks
from encoder_pool.towers.attention import Attention, OneKernel
from encoder_pool.towers.fused.block import Between, FusedBlock
from encoder_pool.towers.fused.operations import Activation, Operations, PlainOperations, has_triton
from encoder_pool.towers.fused.patches import FlatPatches
from encoder_pool.towers.fused.positions import InterpolatedPositions, Taps

FP8_CAPABILITY = (8, 9)
"""The least compute capability that has products in 8 bits."""


@dataclass(frozen=True, slots=True)
class Fused:
    """What a fused tower runs on.

    one_tap  (1, 1) weight of the only tap that fused positions leave; None where stock's own are used
    """

    operations: Operations[Any, Any]
    attention: Attention
    one_tap: torch.Tensor | None

    @property
    def kernels(self) -> Mapping[str, str]:
        """See KnowsItself."""
        return {"blocks": self.operations.name, **self.attention.kernels}

    def arguments(self, metadata: Metadata) -> dict[str, Any]:
        """The keyword arguments of the stock forward."""
        arguments: dict[str, Any] = dict(metadata)
        if self.one_tap is not None:
            arguments["interp_indices"] = Taps(arguments["interp_indices"], arguments["interp_weights"])
            arguments["interp_weights"] = self.one_tap
        return arguments


def fuse(tower: nn.Module, model: ModelConfig, ranks: Ranks = ALONE) -> Fused:
    """Fuse a tower that lies on its device, whole, and keep this rank's part of its blocks.

    The number of ranks divides the heads and the MLP's columns. Raises ValueError for a kernel that there is
    not.
    """
    stock: Any = tower
    blocks = stock.blocks if hasattr(stock, "blocks") else stock.layers
    operations = operations_for(model)
    attention = attention_for(model, blocks[0].attn, operations, ranks)
    _fuse_blocks(blocks, stock.config, operations, attention, ranks)
    stock.patch_embed.proj = FlatPatches(stock.patch_embed.proj)
    one_tap = None
    if hasattr(stock, "pos_embed"):
        stock.pos_embed = InterpolatedPositions(stock.pos_embed, operations)
        one_tap = torch.ones(1, 1, dtype=getattr(torch, model.dtype.value), device=model.device)
    return Fused(operations, attention, one_tap)


def operations_for(model: ModelConfig) -> Operations[Any, Any]:
    """Triton's where they run; in float32, which is for comparing, torch's own.

    Raises ValueError for fp8 where there is none.
    """
    is_half = model.dtype is not DType.FLOAT32
    if model.quantization == "fp8":
        return _fp8_operations()
    if model.device == "cuda" and is_half and has_triton():
        from encoder_pool.towers.fused.triton_operations import TritonOperations

        return TritonOperations()
    return PlainOperations()


def _fp8_operations() -> Operations[Any, Any]:
    if not has_triton():
        raise ValueError("model.quantization 'fp8' needs Triton and a C compiler, and one of them is missing")
    there, least = torch.cuda.get_device_capability(), FP8_CAPABILITY
    if there < least:
        raise ValueError(
            f"model.quantization 'fp8' needs a GPU of compute capability {least[0]}.{least[1]}; "
            f"{torch.cuda.get_device_name()} has {there[0]}.{there[1]}"
        )
    from encoder_pool.towers.fused.fp8_operations import Fp8Operations

    return Fp8Operations()


def attention_for(
    model: ModelConfig, stock: Any, operations: Operations[Any, Any], ranks: Ranks = ALONE
) -> Attention:
    """What `model.attention` asks for, for this rank's heads of a stock attention."""
    width = stock.proj.in_features // stock.num_heads
    if model.device == "cuda":
        from encoder_pool.towers.measured_attention import MeasuredAttention

        if model.attention == "auto" and model.dtype is not DType.FLOAT32:
            num_heads, dtype = stock.num_heads // ranks.count, getattr(torch, model.dtype.value)
            return MeasuredAttention(num_heads, width, dtype, operations)
    return OneKernel("masked" if model.attention == "auto" else model.attention, width)


def _fuse_blocks(
    blocks: nn.ModuleList,
    config: Any,
    operations: Operations[Any, Any],
    attention: Attention,
    ranks: Ranks,
) -> None:
    """Each stock block is let go before the next is copied."""
    read = {*getattr(config, "deepstack_visual_indexes", ()), len(blocks) - 1}
    activation = Activation.named(config.hidden_act)
    before = None
    for at, block in enumerate(blocks):
        after = None if at in read else Between()
        blocks[at] = FusedBlock(block, activation, before, after, operations, attention, ranks)
        before = after

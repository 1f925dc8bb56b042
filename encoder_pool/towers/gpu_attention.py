"""Kernels of packed attention on a GPU: torch's own, FlashAttention 4 if installed, ours for short segments.

None is the fastest everywhere: a kernel made for thousands of rows leaves most of the card idle on windows of
64. `measured_attention` picks among them. Importing this module makes what there is known to `attention`.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

from encoder_pool.towers.attention import register

HALVES = (torch.bfloat16, torch.float16)
"""What all kernels but `masked` compute in."""
LONG_ROWS = 256
"""FlashAttention 4 is not tried on shorter segments, ..."""
SHORT_ROWS = 2048
"""... nor ours on longer ones."""


ALIGNED = 8
"""All but `masked` need heads of so many values or a multiple: 16 bytes."""


def candidates(dtype: torch.dtype, width: int, longest: int) -> tuple[str, ...]:
    """Names of the kernels worth trying for such segments and heads, the plainest first."""
    if dtype not in HALVES or width % ALIGNED:
        return ("masked",)
    names = ["flash2"]
    names += _long if longest >= LONG_ROWS else []
    names += _short if longest <= SHORT_ROWS else []
    return tuple(names)


def flash2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """Torch's own flash attention."""
    rows = varlen_attn(query, key, value, offsets, offsets, longest, longest, scale=scale)
    assert isinstance(rows, torch.Tensor), "it gives more only if asked to"
    return rows


def flash4(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """FlashAttention 4, https://github.com/Dao-AILab/flash-attention. Its first call compiles for seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its compiler, about its own parts
        result = _flash4_function()(
            query,
            key,
            value,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=scale,
        )
    rows: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return rows


@cache
def _flash4_function() -> Callable[..., Any]:
    function: Callable[..., Any] = importlib.import_module("flash_attn.cute.interface").flash_attn_varlen_func
    return function


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


_long: list[str] = []
_short: list[str] = []


def _register_all() -> None:
    register("flash2", flash2)
    if _is_installed("flash_attn") and _is_installed("flash_attn.cute"):
        register("flash4", flash4)
        _long.append("flash4")
    if _is_installed("triton"):
        from encoder_pool.towers.fused.triton_operations import TILES, packed_attention

        for tile in TILES:
            _short.append(f"triton-{tile.queries}x{tile.keys}")
            register(_short[-1], partial(packed_attention, tile=tile))


_register_all()

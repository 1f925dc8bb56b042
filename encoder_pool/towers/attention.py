"""Attention over packed sequences: what a kernel is, all of them by name, and the one that runs everywhere.

A kernel is a function of plain tensors and knows no model.

Shapes: T rows, H heads, D values a head, S sequences. Offsets are (S + 1,) int32, ascending; equal ones are
empty sequences. Rows past the last offset belong to nobody: what a kernel leaves there is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812


class PackedAttention(Protocol):
    """One kernel."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        """(T, H, D) of every row over the rows of its own sequence. No host synchronisation.

        longest  rows of the longest sequence, at least; a launch grid may be made for it
        """
        ...


class Attention(Protocol):
    """A kernel for every length, of heads that have D values each."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """Which kernel serves what, in words."""
        ...

    def width(self, rows: int, longest: int) -> int:
        """Values, at least D, that heads had better have for so many rows; those added are zero."""
        ...

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        """See PackedAttention; heads have the width that was asked for."""
        ...


class OneKernel:
    """The same kernel for every length."""

    def __init__(self, name: str, width: int) -> None:
        """Of that name. Raises ValueError for one that nobody registered."""
        self._name = name
        self._kernel = kernel_of(name)
        self._width = width

    @property
    def kernels(self) -> Mapping[str, str]:
        """The one."""
        return {"attention": self._name}

    def width(self, rows: int, longest: int) -> int:
        """As they are."""
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
        """See Attention."""
        return self._kernel(query, key, value, offsets, longest, scale)


def masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """Torch's dense attention under a block mask: works everywhere, and costs T squared."""
    rows = torch.arange(len(query), device=query.device, dtype=offsets.dtype)
    sequence = torch.bucketize(rows, offsets[1:], right=True)
    mask = sequence[:, None] == sequence[None, :]
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[0].transpose(0, 1)


KERNELS: dict[str, PackedAttention] = {}
"""All kernels by name. Filled by `register`."""


def register(name: str, kernel: PackedAttention) -> None:
    """Make a kernel known under a name."""
    KERNELS[name] = kernel


def kernel_of(name: str) -> PackedAttention:
    """The kernel of that name. Raises ValueError if nobody registered it."""
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise ValueError(f"model.attention '{name}' is no kernel of this machine; those are: {known}")
    return KERNELS[name]


register("masked", masked)

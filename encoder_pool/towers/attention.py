"""Attention over packed sequences: what a kernel is, all of them by name, and the one that runs everywhere.

A kernel is a function of plain tensors and knows no model.

Shapes: T rows, H heads, D values a head, S sequences. Offsets are (S + 1,) int32, ascending; equal ones are
empty sequences. Rows past the last offset belong to nobody: what a kernel leaves there is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812

from encoder_pool.towers.adapter import KernelChoice


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


class Attention(PackedAttention, Protocol):
    """A kernel for every length, of heads that have D values each, called when they have the `width`."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """Which kernel serves what, in words."""
        ...

    def width(self, rows: int, longest: int) -> int:
        """Values, at least D, that heads had better have for so many rows; those added are zero."""
        ...


@runtime_checkable
class Tunable(Protocol):
    """An `Attention` that chooses by measuring."""

    @property
    def choices(self) -> tuple[KernelChoice, ...]:
        """What was chosen until now, by rows and longest segment."""
        ...

    def adopt(self, choices: Sequence[KernelChoice]) -> None:
        """Take over what was chosen before; of kernels that are not here nothing."""
        ...

    def tune(self, offsets: torch.Tensor, longest: int, budget_s: float) -> None:
        """Choose for segments of these offsets, in about so many seconds, unless that is done already.

        Raises RuntimeError, with every candidate's reason, if none works.
        """
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
    return masked_rows(rows, query, key, value, offsets, scale)


def masked_rows(
    rows: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """`masked` of some rows: (N,) -> (N, H, D). The query is (N, H, D) of these, key and value are of all."""
    every = torch.arange(len(key), device=key.device, dtype=offsets.dtype)
    asking, asked = (torch.bucketize(each, offsets[1:], right=True) for each in (rows, every))
    mask = asking[:, None] == asked[None, :]
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

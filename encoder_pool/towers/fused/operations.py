"""What a block does between its products: the operations, and their plain form in torch's own functions.

`PlainOperations` runs everywhere and says what each operation means; `triton_operations` has the same for a
GPU. Knows no blocks.

Shapes: T rows, C columns, H heads, D values of a head.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from encoder_pool.towers.fused.products import Product


class Norm(NamedTuple):
    """The numbers of a LayerNorm, or, without a bias, of an RMSNorm. weight, bias: (C,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float

    @staticmethod
    def of(stock: nn.Module) -> Norm:
        """The numbers of a stock norm: a LayerNorm that has a bias, or a family's RMSNorm."""
        norm: Any = stock
        if isinstance(stock, nn.LayerNorm):
            return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
        return Norm(norm.weight.detach(), None, norm.variance_epsilon)


class Activation(StrEnum):
    """What lies between the two products of an MLP, by the names that config.json gives them."""

    GELU = "gelu_pytorch_tanh"
    QUICK_GELU = "quick_gelu"
    GATED_SILU = "silu"

    @staticmethod
    def named(name: str) -> Activation:
        """By that name. Raises ValueError for one that is not here."""
        try:
            return Activation(name)
        except ValueError:
            known = ", ".join(sorted(Activation))
            message = f"model.checkpoint: config.json has hidden_act '{name}'; blocks know {known}"
            raise ValueError(message) from None


X = TypeVar("X")
W = TypeVar("W")


class Operations(Protocol[X, W]):
    """The operations, for contiguous tensors. None synchronises; what is changed in place says so.

    X, W  rows and weights as products take them: tensors as they are, or scaled to fewer bits
    """

    name: str

    def weight(self, product: Product) -> W:
        """A product's numbers, as `linear` takes them."""
        ...

    def operand(self, rows: torch.Tensor) -> X:
        """(T, C) rows, as `linear` takes them."""
        ...

    def linear(self, operand: X, weight: W) -> torch.Tensor:
        """(T, C) -> (T, O): the rows' product with a weight, plus its bias."""
        ...

    def activated(self, activation: Activation, operand: X, weight: W) -> X:
        """(T, C) -> (T, O), or (T, O / 2) if it is gated: the activation of `linear`.

        gelu        its tanh form
        quick gelu  x * sigmoid(1.702 x): https://arxiv.org/abs/1606.08415, section 2
        gated silu  silu of the first half of the columns times the second
        """
        ...

    def normalise(
        self, pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """(T, C) uint8 -> (T, C): (pixels - mean) / std in float32, rounded once. mean, std: (C,) float32."""
        ...

    def interpolate(self, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Rows of a table (N, C), summed by weight: indices and weights (T, taps) -> (T, C)."""
        ...

    def norm(self, hidden: torch.Tensor, branch: torch.Tensor | None, norm: Norm) -> X:
        """Add the branch to hidden in place, (T, C) both, and return that normalised."""
        ...

    def rotate(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: int
    ) -> torch.Tensor:
        """(T, 3, H, D) with queries and keys, the first two of the three, rotated, in place if it can be.

        Neighbours, values 2i and 2i + 1, are turned by angle i of cosines and sines, (T, D) each. Heads then
        have `width` >= D values; what is added is zero.
        """
        ...


class PlainOperations:
    """Torch's own functions."""

    name = "torch"

    def weight(self, product: Product) -> Product:
        """As it is."""
        return product

    def operand(self, rows: torch.Tensor) -> torch.Tensor:
        """As they are."""
        return rows

    def linear(self, operand: torch.Tensor, weight: Product) -> torch.Tensor:
        """See Operations."""
        return F.linear(operand, *weight)

    def activated(self, activation: Activation, operand: torch.Tensor, weight: Product) -> torch.Tensor:
        """See Operations."""
        product = F.linear(operand, *weight)
        if activation is Activation.GELU:
            return F.gelu(product, approximate="tanh")
        if activation is Activation.QUICK_GELU:
            return product * torch.sigmoid(1.702 * product)
        gates, values = product.chunk(2, dim=-1)
        return F.silu(gates) * values

    def normalise(
        self, pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """See Operations."""
        # By a tensor, not a number: CUDA turns a division by a number into a product, one bit off.
        return ((pixels.to(torch.float32) - mean) / std).to(dtype)

    def interpolate(self, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        return (table[indices] * weights[..., None]).sum(1).to(table.dtype)

    def norm(self, hidden: torch.Tensor, branch: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """See Operations."""
        if branch is not None:
            hidden.add_(branch)
        shape = norm.weight.shape
        if norm.bias is None:
            return F.rms_norm(hidden, shape, norm.weight, norm.eps)
        return F.layer_norm(hidden, shape, norm.weight, norm.bias, norm.eps)

    def rotate(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: int
    ) -> torch.Tensor:
        """See Operations."""
        half = heads.shape[-1] // 2
        cosine, sine = (angles[:, None, None, :half].float() for angles in (cosines, sines))
        first, second = heads[:, :2].view(*heads[:, :2].shape[:-1], half, 2).float().unbind(-1)
        turned = torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        heads[:, :2] = turned.flatten(-2)
        missing = width - heads.shape[-1]
        # Torch copies for a padding of nothing too.
        return F.pad(heads, (0, missing)) if missing else heads


def has_triton() -> bool:
    """Whether Triton is installed, and a compiler, with which it builds what launches its kernels."""
    has_compiler = "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang"))
    return importlib.util.find_spec("triton") is not None and has_compiler

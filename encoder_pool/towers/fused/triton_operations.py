"""The operations of a block on a GPU: one launch each. See `operations` for what they mean.

Imported only where Triton is. Launch shapes were chosen on an H200.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import triton

from encoder_pool.towers.fused import triton_kernels
from encoder_pool.towers.fused.operations import Activation, Norm
from encoder_pool.towers.fused.products import Product

_CODES = {Activation.GELU: 1, Activation.QUICK_GELU: 2, Activation.GATED_SILU: 3}
"""As the kernel knows them; 0 leaves the rows as they are."""
_WIDE = 4096
"""Columns from which on a row takes more warps than Triton's four."""


class TritonOperations:
    """Operations in half precision."""

    name = "triton"

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
        """See Operations. The product's own epilogue has the tanh form of gelu."""
        if activation is Activation.GELU:
            return torch._addmm_activation(weight.bias, operand, weight.weight.t(), use_gelu=True)
        products = F.linear(operand, *weight)
        result = products.new_empty(len(products), columns_after(activation, products))
        launch_activated(activation, products, result)
        return result

    def normalise(
        self, pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """See Operations."""
        rows, width = pixels.shape
        normalised = torch.empty(rows, width, dtype=dtype, device=pixels.device)
        triton_kernels.normalise[rows,](
            pixels, mean, std, normalised, width, block=triton.next_power_of_2(width)
        )
        return normalised

    def interpolate(self, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        (rows, taps), width = indices.shape, table.shape[1]
        result = table.new_empty(rows, width)
        triton_kernels.interpolate[rows,](
            table, indices, weights, result, width, taps=taps, block=triton.next_power_of_2(width)
        )
        return result

    def norm(self, hidden: torch.Tensor, branch: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """See Operations."""
        normed = torch.empty_like(hidden)
        launch_norm(hidden, branch, norm, normed)
        return normed

    def rotate(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: int
    ) -> torch.Tensor:
        """See Operations."""
        rows, parts, num_heads, given = heads.shape
        in_place = width == given
        rotated = heads if in_place else heads.new_empty(rows, parts, num_heads, width)
        triton_kernels.rotate[rows, 2 if in_place else parts](
            heads,
            cosines,
            sines,
            rotated,
            cosines.stride(0),
            num_heads=num_heads,
            width=given,
            rotated_width=width,
            block_heads=triton.next_power_of_2(num_heads),
            block_pairs=triton.next_power_of_2(width // 2),
        )
        return rotated


def columns_after(activation: Activation, products: torch.Tensor) -> int:
    """Columns that are left of (T, C) products."""
    return products.shape[1] // 2 if activation is Activation.GATED_SILU else products.shape[1]


def launch_norm(
    hidden: torch.Tensor,
    branch: torch.Tensor | None,
    norm: Norm,
    normed: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """See Operations.norm. With scales, (T,) float32, rows are scaled to the range of the result's type."""
    rows, width = hidden.shape
    triton_kernels.norm[rows,](
        hidden,
        hidden if branch is None else branch,
        norm.weight,
        norm.weight if norm.bias is None else norm.bias,
        normed,
        normed if scales is None else scales,
        width,
        norm.eps,
        has_branch=branch is not None,
        is_rms=norm.bias is None,
        is_scaled=scales is not None,
        largest=torch.finfo(normed.dtype).max,
        block=triton.next_power_of_2(width),
    )


def launch_activated(
    activation: Activation | None,
    products: torch.Tensor,
    result: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """The activation of (T, C) or (T, 2 * C) products, or none. With scales as `launch_norm`."""
    rows, width = result.shape
    block = triton.next_power_of_2(width)
    triton_kernels.activated[rows,](
        products,
        result,
        result if scales is None else scales,
        width,
        activation=_CODES[activation] if activation else 0,
        is_scaled=scales is not None,
        largest=torch.finfo(result.dtype).max,
        block=block,
        num_warps=8 if block >= _WIDE else 4,
    )

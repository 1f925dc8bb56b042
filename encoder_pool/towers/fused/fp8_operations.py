"""The operations with products in 8-bit floating point: half the bytes, nearly twice the rate.

Rows and the rows of weights are scaled, each by its own largest value, to the range of e4m3
(https://arxiv.org/abs/2209.05433); sums are made in float32 and come out in the tower's type. Everything
between the products stays as it is, but that it leaves its rows scaled.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from encoder_pool.towers.fused.operations import Activation, Norm
from encoder_pool.towers.fused.products import Product
from encoder_pool.towers.fused.triton_operations import (
    TritonOperations,
    columns_after,
    launch_activated,
    launch_norm,
)

EIGHTH = torch.float8_e4m3fn


class Scaled(NamedTuple):
    """Rows as values times a scale each: (T, C) e4m3, (T, 1) float32."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def empty(rows: int, columns: int, device: torch.device) -> Scaled:
        """Room for so many."""
        values = torch.empty(rows, columns, dtype=EIGHTH, device=device)
        return Scaled(values, torch.empty(rows, 1, dtype=torch.float32, device=device))


class ScaledProduct(NamedTuple):
    """A linear layer's numbers. values (O, C) e4m3, scales (O, 1) float32, bias (O,)."""

    values: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor


class Fp8Operations:
    """Operations of a tower in bfloat16, with products in e4m3."""

    name = "triton, products in fp8"

    def __init__(self) -> None:
        self._half = TritonOperations()
        self.normalise = self._half.normalise
        self.interpolate = self._half.interpolate
        self.rotate = self._half.rotate

    def weight(self, product: Product) -> ScaledProduct:
        """Its rows scaled."""
        return ScaledProduct(*self.operand(product.weight.contiguous()), product.bias)

    def operand(self, rows: torch.Tensor) -> Scaled:
        """The rows scaled."""
        scaled = Scaled.empty(len(rows), rows.shape[1], rows.device)
        launch_activated(None, rows, *scaled)
        return scaled

    def linear(self, operand: Scaled, weight: ScaledProduct) -> torch.Tensor:
        """See Operations."""
        return torch._scaled_mm(
            operand.values,
            weight.values.t(),
            scale_a=operand.scales,
            scale_b=weight.scales.t(),
            bias=weight.bias,
            out_dtype=weight.bias.dtype,
            use_fast_accum=True,
        )

    def activated(self, activation: Activation, operand: Scaled, weight: ScaledProduct) -> Scaled:
        """See Operations."""
        products = self.linear(operand, weight)
        scaled = Scaled.empty(len(products), columns_after(activation, products), products.device)
        launch_activated(activation, products, *scaled)
        return scaled

    def norm(self, hidden: torch.Tensor, branch: torch.Tensor | None, norm: Norm) -> Scaled:
        """See Operations."""
        scaled = Scaled.empty(len(hidden), hidden.shape[1], hidden.device)
        launch_norm(hidden, branch, norm, *scaled)
        return scaled

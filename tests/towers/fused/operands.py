"""What the operations of a block are given in these tests."""

from __future__ import annotations

from typing import NamedTuple

import torch

from encoder_pool.towers.fused.operations import Activation, Norm
from encoder_pool.towers.fused.products import Product


class Place(NamedTuple):
    """Where tensors lie, and their type."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"


CPU = Place()


def normal(*shape: int, seed: int = 0, place: Place = CPU) -> torch.Tensor:
    """Normal numbers, the same in every place but for their rounding."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(place.device, place.dtype)


def norm(width: int, is_rms: bool, place: Place = CPU) -> Norm:
    """Numbers none of which is zero or one, and an eps that counts."""
    bias = None if is_rms else normal(width, seed=12, place=place)
    return Norm(normal(width, seed=11, place=place), bias, 0.01)


class Turn(NamedTuple):
    """Heads, (T, 3, H, D), and the angles that they are turned by, (T, D) float32 each.

    The angles' second half of columns, which nobody should read, is NaN.
    """

    heads: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor


def turn(rows: int, num_heads: int, width: int, seed: int = 0, place: Place = CPU) -> Turn:
    angles = 3 * normal(rows, width, seed=seed + 1, place=Place(device=place.device))
    angles[:, width // 2 :] = torch.nan
    return Turn(normal(rows, 3, num_heads, width, seed=seed, place=place), angles.cos(), angles.sin())


class Sum(NamedTuple):
    """A table (N, C), and which of its rows are summed with what weights: (T, taps) int32 and float32."""

    table: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor


def taps(rows: int, width: int, seed: int = 0, place: Place = CPU) -> Sum:
    """Four taps of a table of nine rows."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, 9, (rows, 4), generator=generator, dtype=torch.int32)
    weights = normal(rows, 4, seed=seed + 1, place=Place(device=place.device))
    return Sum(normal(9, width, seed=seed + 2, place=place), indices.to(place.device), weights)


class Layer(NamedTuple):
    """Rows (T, C), and a linear layer's weight (O, C) and bias (O,)."""

    rows: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor

    @property
    def product(self) -> Product:
        return Product(self.weight, self.bias)


def layer(rows: int, width: int, outputs: int, seed: int = 0, place: Place = CPU) -> Layer:
    """Products of it are of order one."""
    weight = normal(outputs, width, seed=seed + 1) * width**-0.5
    return Layer(
        normal(rows, width, seed=seed, place=place),
        weight.to(place.device, place.dtype),
        normal(outputs, seed=seed + 2, place=place),
    )


def before(
    activation: Activation, rows: int, width: int, outputs: int, seed: int = 0, place: Place = CPU
) -> Layer:
    """A layer whose products, activated, are so many outputs."""
    return layer(rows, width, outputs * (2 if activation is Activation.GATED_SILU else 1), seed, place)


def silence(given: Layer, activation: Activation, first: int) -> None:
    """Let all outputs from the first on have no weights; a gated one is of two halves."""
    for numbers in given.product:
        for part in numbers.chunk(2) if activation is Activation.GATED_SILU else (numbers,):
            part[first:] = 0


class Levels(NamedTuple):
    """uint8 pixels (T, C), and the mean and deviation of each column, float32."""

    pixels: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor


def levels(rows: int, width: int, seed: int = 0, device: str = "cpu") -> Levels:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (rows, width), generator=generator, dtype=torch.uint8)
    mean, std = 100 + 20 * normal(width, seed=1), 60 + 5 * normal(width, seed=2)
    return Levels(pixels.to(device), mean.to(device), std.to(device))

"""The operations of a block as their formulas have them, in float64, a row at a time where that says it."""

from __future__ import annotations

import math

import torch

from encoder_pool.towers.fused.operations import Activation, Norm

from .operands import Layer, Levels, Sum, Turn


def normalise(given: Levels) -> torch.Tensor:
    return (given.pixels.double() - given.mean.double()) / given.std.double()


def interpolate(given: Sum) -> torch.Tensor:
    rows = torch.zeros(len(given.indices), given.table.shape[1], dtype=torch.float64)
    for row, (places, weights) in enumerate(zip(given.indices.tolist(), given.weights.tolist(), strict=True)):
        for place, weight in zip(places, weights, strict=True):
            rows[row] += weight * given.table[place].double()
    return rows


def norm(hidden: torch.Tensor, of: Norm) -> torch.Tensor:
    return torch.stack([_normed(row, of) for row in hidden.double()])


def _normed(row: torch.Tensor, of: Norm) -> torch.Tensor:
    if of.bias is None:
        return row / math.sqrt((row @ row).item() / len(row) + of.eps) * of.weight.double()
    row = row - row.sum() / len(row)
    deviation = math.sqrt((row @ row).item() / len(row) + of.eps)
    return row / deviation * of.weight.double() + of.bias.double()


def rotate(given: Turn, width: int) -> torch.Tensor:
    """A pair of values is a complex number, to be multiplied by one of the unit circle."""
    rows, _, num_heads, own = given.heads.shape
    rotated = torch.zeros(rows, 3, num_heads, width, dtype=torch.float64)
    rotated[..., :own] = given.heads.double()
    angle = torch.complex(given.cosines.double(), given.sines.double())
    for pair in range(own // 2):
        at = slice(2 * pair, 2 * pair + 2)
        turned = torch.view_as_complex(rotated[:, :2, :, at].contiguous()) * angle[:, pair, None, None]
        rotated[:, :2, :, at] = torch.view_as_real(turned)
    return rotated


def linear(given: Layer) -> torch.Tensor:
    return torch.einsum("tc,oc->to", given.rows.double(), given.weight.double()) + given.bias.double()


def activated(activation: Activation, products: torch.Tensor) -> torch.Tensor:
    return _ACTIVATIONS[activation](products.double())


def _gated_silu(gates_and_values: torch.Tensor) -> torch.Tensor:
    gates, values = gates_and_values.tensor_split(2, dim=1)
    return gates / (1 + (-gates).exp()) * values


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """The tanh form of https://arxiv.org/abs/1606.08415, section 2."""
    return x / 2 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-1.702 * x).exp())


_ACTIVATIONS = {
    Activation.GELU: _gelu,
    Activation.QUICK_GELU: _quick_gelu,
    Activation.GATED_SILU: _gated_silu,
}

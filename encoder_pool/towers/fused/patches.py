"""The patch embedding of stock grid towers, made fast: a convolution over whole patches is one product."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class FlatPatches(nn.Module):
    """A patch embedding whose convolution covers the whole patch: one product over flattened patches.

    Exact, but for the order of summation; the convolution it replaces is many times slower.
    """

    def __init__(self, convolution: nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        # The stock module asks its convolution for `weight.dtype`.
        self.weight = nn.Parameter(convolution.weight.detach().flatten(1), requires_grad=False)
        self.bias = convolution.bias

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(N, ...) of a patch's values -> (N, hidden)."""
        return F.linear(patches.flatten(1), self.weight, self.bias)

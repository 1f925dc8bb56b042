"""One product over flattened patches, against the convolution that it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from encoder_pool.towers.fused.patches import FlatPatches
from encoder_pool.towers.loading import bytes_of
from tests.towers.cases import assert_close, randomised

from .operands import normal


@pytest.mark.parametrize("count", [1, 33])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("kind", "kernel"), [(nn.Conv2d, (6, 6)), (nn.Conv3d, (2, 6, 6))])
def test_patches_are_embedded_as_by_the_convolution(
    kind: type[nn.Conv2d | nn.Conv3d], kernel: tuple[int, ...], has_bias: bool, count: int
) -> None:
    convolution = randomised(kind(3, 40, kernel, stride=kernel, bias=has_bias))  # type: ignore[arg-type]
    flat = FlatPatches(convolution)
    patches = normal(count, 3, *kernel)
    with torch.no_grad():
        assert_close(flat(patches), convolution(patches).flatten(1))


def test_the_weights_are_the_convolutions_own_and_say_their_type() -> None:
    convolution = nn.Conv2d(3, 40, 6).bfloat16()
    flat = FlatPatches(convolution)
    assert flat.weight.dtype == torch.bfloat16
    assert flat.weight.data_ptr() == convolution.weight.data_ptr()
    assert bytes_of(flat) == bytes_of(convolution)

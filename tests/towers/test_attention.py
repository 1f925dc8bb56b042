"""Kernels by name, and the one that serves every length. `masked` is in `test_grid_capture`."""

from __future__ import annotations

import pytest
import torch

from encoder_pool.towers.attention import KERNELS, OneKernel, kernel_of, masked, register


def swapped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """Nothing like attention, of all that it was given."""
    return (query - key) * value * scale + offsets.sum() + longest


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here alone: elsewhere whatever is registered is tried."""
    monkeypatch.setitem(KERNELS, "swapped", masked)
    register("swapped", swapped)


def test_masked_is_known_everywhere() -> None:
    assert kernel_of("masked") is masked


@pytest.mark.usefixtures("_known")
def test_an_unknown_kernel_is_refused_and_the_known_are_named() -> None:
    for ask in (kernel_of, lambda name: OneKernel(name, 72)):
        with pytest.raises(ValueError, match=r"model\.attention 'fast' is no .*masked.*, swapped"):
            ask("fast")


@pytest.mark.usefixtures("_known")
def test_one_kernel_serves_every_length_at_the_width_of_the_heads() -> None:
    attention = OneKernel("swapped", 72)
    assert attention.kernels == {"attention": "swapped"}
    assert [attention.width(rows, longest) for rows, longest in ((1, 1), (4096, 7))] == [72, 72]


@pytest.mark.usefixtures("_known")
def test_one_kernel_is_given_all_that_it_is_called_with() -> None:
    query, key, value = torch.randn(3, 5, 2, 8).unbind()
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    rows = OneKernel("swapped", 8)(query, key, value, offsets, 3, 0.5)
    assert torch.equal(rows, (query - key) * value * 0.5 + 7 + 3)

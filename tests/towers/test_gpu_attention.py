"""Which kernels are tried where, and each of them against the masked one in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
import torch

from encoder_pool.towers.attention import KERNELS, PackedAttention, kernel_of, masked
from tests.gpu import needs_gpu

from .kernels import gpu_attention
from .recording import recorded

HEADS = 3
RAGGED = (1, 63, 0, 64, 65, 256, 0, 100, 0, 0)
"""The last with rows fills no tile of any kernel, so that it reads on in the rows of nobody."""
OTHERWISE = (256, 0, 3, 100, 0, 129, 0, 60, 1, 0)
"""As many segments and rows, and a longest one of the same length."""
NOBODYS = 37
"""Rows past the last offset."""

MISSING = {
    "flash4": "FlashAttention 4 (flash_attn.cute) is not installed",
    "triton": "Triton is not installed, or no compiler for it",
}


class Heads(NamedTuple):
    """Type and width of heads, and whether the three lie in one buffer, as those of a block do."""

    dtype: torch.dtype
    width: int
    is_packed: bool = True


# Each is compiled for, a second and more: all of them for the first tile of ours only.
ALL_HEADS = {
    "bfloat16-72": Heads(torch.bfloat16, 72),
    "bfloat16-80": Heads(torch.bfloat16, 80),
    "bfloat16-64": Heads(torch.bfloat16, 64),
    "bfloat16-128-apart": Heads(torch.bfloat16, 128, is_packed=False),
    "float16-72": Heads(torch.float16, 72),
}
OF_TOWERS = ("bfloat16-72", "bfloat16-80")


def names() -> list[str]:
    """All kernels that are tried at any length, and, to be skipped with the reason, those that lack here."""
    found: list[str] = []
    if torch.cuda.is_available():
        candidates = gpu_attention().candidates
        found = [name for longest in (64, 256, 4096) for name in candidates(torch.bfloat16, 72, longest)]
    lacking = [name for name in ("flash2", *MISSING) if not any(each.startswith(name) for each in found)]
    return [*dict.fromkeys(found), *lacking]


def combinations(*spreading: str) -> pytest.MarkDecorator:
    """Each kernel, but for those that spread NaN, with heads like the towers', and some with all heads."""
    found = names()
    with_all = ("flash2", next(name for name in found if name.startswith("triton")))
    return pytest.mark.parametrize(
        ("name", "heads"),
        [
            pytest.param(name, heads, id=f"{name}-{key}")
            for name in found
            for key, heads in ALL_HEADS.items()
            if name not in spreading and (name in with_all or key in OF_TOWERS)
        ],
    )


def here(name: str) -> PackedAttention:
    """The kernel, if this machine has it."""
    gpu_attention()
    if name not in KERNELS:
        pytest.skip(MISSING[name])
    return kernel_of(name)


class Packed(NamedTuple):
    """Queries, keys and values (T, H, D) each, and offsets, as a kernel is called with them.

    rows  those of segments, the first ones
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    offsets: torch.Tensor
    rows: int

    @property
    def scale(self) -> float:
        return float(self.query.shape[2] ** -0.5)

    def attended(self, kernel: PackedAttention, longest: int = 256) -> torch.Tensor:
        """(T, H, D)."""
        return kernel(self.query, self.key, self.value, self.offsets, longest, self.scale)

    def assert_attended(self, rows: torch.Tensor) -> None:
        """Every row of a segment within what one rounding of the weights and one of the sum make of it.

        Each is by half of eps at most: of a weight, and so of the sum of weights times sizes of values, and
        of the result, which is no larger than that sum. What float32 adds in another order is 1e-5.
        """
        query, key, value = (given[: self.rows].float().cpu() for given in self[:3])
        offsets, scale = self.offsets.cpu(), self.scale
        exact = masked(query, key, value, offsets, 256, scale)
        sizes = masked(query, key, value.abs(), offsets, 256, scale)
        assert rows.dtype == self.query.dtype
        assert rows.shape == self.query.shape
        errors = (rows[: self.rows].float().cpu() - exact).abs()
        assert (errors <= torch.finfo(rows.dtype).eps * sizes + 1e-5).all(), errors.max()


def offsets_of(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


def packed(heads: Heads, lengths: Sequence[int] = RAGGED, seed: int = 0) -> Packed:
    """Normal numbers, also in the rows of nobody."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(lengths) + NOBODYS, 3, HEADS, heads.width)
    buffer = torch.randn(shape, generator=generator).to("cuda", heads.dtype)
    query, key, value = buffer.unbind(1)
    if not heads.is_packed:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    return Packed(query, key, value, offsets_of(lengths), sum(lengths))


@needs_gpu
@pytest.mark.parametrize("lengths", [RAGGED, (1,), (300,)], ids=["ragged", "one row", "one segment"])
@combinations()
def test_rows_attend_to_those_of_their_segment(name: str, heads: Heads, lengths: tuple[int, ...]) -> None:
    given = packed(heads, lengths)
    given.assert_attended(given.attended(here(name), max(256, *lengths)))


@needs_gpu
@combinations()
def test_a_launch_may_be_made_for_longer_segments(name: str, heads: Heads) -> None:
    given = packed(heads)
    given.assert_attended(given.attended(here(name), longest=1000))


@needs_gpu
@combinations("flash4")  # The towers cover their tails with segments: see `test_grid_capture`.
def test_what_is_in_the_rows_of_nobody_reaches_no_row(name: str, heads: Heads) -> None:
    given = packed(heads)
    for each in given[:3]:
        each[given.rows :] = torch.nan
    given.assert_attended(given.attended(here(name)))


@needs_gpu
@combinations()
def test_captured_a_kernel_takes_new_contents_and_other_segments(name: str, heads: Heads) -> None:
    static, kernel = packed(heads), here(name)
    result, replay = recorded(lambda: static.attended(kernel))
    for seed, lengths in enumerate((OTHERWISE, RAGGED), start=1):
        for tensor, contents in zip(static[:4], packed(heads, lengths, seed)[:4], strict=True):
            tensor.copy_(contents)
        replay()
        static.assert_attended(result)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, as if there was one kernel for long segments and one for short ones."""
    module = gpu_attention()
    monkeypatch.setattr(module, "_long", ["long"])
    monkeypatch.setattr(module, "_short", ["short"])
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [8, 72, 80, 128])
def test_kernels_are_tried_at_the_lengths_they_are_for(three: Any, dtype: torch.dtype, width: int) -> None:
    tried = {longest: three.candidates(dtype, width, longest) for longest in (1, 255, 256, 2048, 2049)}
    assert tried[1] == tried[255] == ("flash2", "short")
    assert tried[256] == tried[2048] == ("flash2", "long", "short")
    assert tried[2049] == ("flash2", "long")


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 72), (torch.bfloat16, 12), (torch.float16, 4), (torch.float16, 81)]
)
@pytest.mark.parametrize("longest", [1, 4096])
def test_other_types_and_widths_are_masked(three: Any, dtype: torch.dtype, width: int, longest: int) -> None:
    assert three.candidates(dtype, width, longest) == ("masked",)


@pytest.mark.parametrize("installed", [(), ("flash_attn",), ("flash_attn", "flash_attn.cute")])
def test_known_is_what_is_installed(
    three: Any, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...]
) -> None:
    known: dict[str, PackedAttention] = {}
    monkeypatch.setattr(three, "register", known.__setitem__)
    monkeypatch.setattr(three, "has_triton", lambda: False)
    monkeypatch.setattr(three, "_is_installed", lambda package: package in installed)
    three._register_all()
    has_flash4 = len(installed) == 2
    assert list(known) == ["flash2", *["flash4"] * has_flash4]
    assert three._long == ["long", *["flash4"] * has_flash4]

"""The choice of a kernel by measuring: how it is kept and told, and, on a GPU, that it is made well."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from encoder_pool.core import DType
from encoder_pool.towers.attention import KERNELS, masked
from encoder_pool.towers.fused.fuse import operations_for
from encoder_pool.towers.fused.operations import Operations, PlainOperations
from tests.gpu import needs_gpu

from .cases import model_config
from .kernels import gpu_attention

if TYPE_CHECKING:
    from encoder_pool.towers.measured_attention import MeasuredAttention, Shape

HEADS, WIDTH = 3, 72


def measured(operations: Operations[Any, Any] | None = None) -> MeasuredAttention:
    """Of heads like those in `test_gpu_attention`, for which kernels are compiled already."""
    gpu_attention()
    from encoder_pool.towers.measured_attention import MeasuredAttention

    return MeasuredAttention(HEADS, WIDTH, torch.bfloat16, operations or PlainOperations())


def shape(rows: int, longest: int) -> Shape:
    from encoder_pool.towers.measured_attention import Shape

    return Shape(rows, longest)


def chosen(kernel: str = "masked", width: int = WIDTH, us: float = 12.34) -> Any:
    from encoder_pool.towers.measured_attention import Choice

    return Choice(kernel, width, us)


def known(monkeypatch: pytest.MonkeyPatch, name: str, kernel: Any) -> None:
    """Let it be a kernel, for this test alone."""
    monkeypatch.setitem(KERNELS, name, kernel)


def tried(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these be the candidates, whatever there is."""
    from encoder_pool.towers import measured_attention

    monkeypatch.setattr(measured_attention, "candidates", lambda dtype, width, longest: names)


@pytest.mark.parametrize(
    ("rows", "longest", "rounded"),
    [
        (1, 1, (1, 1)),
        (5, 3, (8, 4)),
        (64, 64, (64, 64)),
        (65, 65, (128, 128)),
        (4096, 257, (4096, 512)),
        (16384, 9000, (16384, 16384)),
        (16385, 256, (16384, 256)),
        (100_000, 50_000, (16384, 16384)),
        (100, 1000, (128, 128)),
    ],
)
def test_a_choice_is_made_for_powers_of_two(rows: int, longest: int, rounded: tuple[int, int]) -> None:
    attention = measured()
    attention.choices[shape(*rounded)] = chosen(width=80)
    assert attention.width(rows, longest) == 80
    assert list(attention.choices) == [rounded]


def test_the_choice_is_what_runs() -> None:
    attention = measured()
    attention.choices[shape(8, 4)] = chosen("masked")
    query, key, value = torch.randn(3, 5, HEADS, WIDTH).unbind()
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    expected = masked(query, key, value, offsets, 3, 0.5)
    assert torch.equal(attention(query, key, value, offsets, 3, 0.5), expected)


def test_choices_are_told_from_the_smallest_shape_on() -> None:
    attention = measured()
    attention.choices |= {shape(256, 64): chosen(), shape(64, 64): chosen("flash2", 80, 2.0)}
    assert list(attention.kernels.items()) == [
        ("attention of 64 rows, 64 a segment", "flash2, heads of 80, 2.0 us"),
        ("attention of 256 rows, 64 a segment", "masked, heads of 72, 12.3 us"),
    ]


def _halved(rows: torch.Tensor) -> torch.Tensor:
    return rows / 2


def _last_row_lost(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:-1], torch.zeros_like(rows[-1:])])


def _nan_in_one_head(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone()
    rows[3, 1, 5] = torch.nan
    return rows


@pytest.mark.parametrize("spoil", [_halved, _last_row_lost, _nan_in_one_head])
@pytest.mark.parametrize("size", [1.0, 0.01], ids=["of short segments", "of long segments"])
def test_other_numbers_are_seen_however_small_they_are(
    spoil: Callable[[torch.Tensor], torch.Tensor], size: float
) -> None:
    gpu_attention()
    from encoder_pool.towers.measured_attention import _is_close

    exact = size * torch.randn(1024, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    rounded = exact.bfloat16()
    assert _is_close(rounded, exact.bfloat16() * (1 + 2**-8))
    assert not _is_close(spoil(rounded), exact)


def on_gpu() -> MeasuredAttention:
    return measured(operations_for(model_config(DType.BFLOAT16, "cuda")))


def attended(attention: MeasuredAttention, rows: int, longest: int) -> torch.Tensor:
    """Of random heads, in segments of so many rows, as a block asks for it."""
    generator = torch.Generator().manual_seed(0)
    width = attention.width(rows, longest)
    heads = torch.randn(rows, 3, HEADS, WIDTH, generator=generator).to("cuda", torch.bfloat16)
    query, key, value = torch.nn.functional.pad(heads, (0, width - WIDTH)).unbind(1)
    offsets = torch.arange(0, rows + 1, longest, dtype=torch.int32, device="cuda")
    result = attention(query, key, value, offsets, longest, WIDTH**-0.5)
    query, key, value = query.float(), key.float(), value.float()
    exact = masked(query, key, value, offsets, longest, WIDTH**-0.5)
    # Weights and sums are rounded to eight bits each; values are below five.
    torch.testing.assert_close(result.float(), exact, rtol=2**-7, atol=2**-7)
    return result


@needs_gpu
def test_a_candidate_is_chosen_and_computes_what_masked_does() -> None:
    attention = on_gpu()
    attended(attention, 192, 64)
    (at, choice), *others = attention.choices.items()
    assert not others
    assert at == (256, 64)
    assert choice.kernel in gpu_attention().candidates(torch.bfloat16, WIDTH, 64)
    assert choice.width in (72, 80)
    assert choice.us > 0
    assert attention.kernels == {
        "attention of 256 rows, 64 a segment": f"{choice.kernel}, heads of {choice.width}, {choice.us:.1f} us"
    }


@needs_gpu
def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(monkeypatch, "flash2")
    attention = on_gpu()
    attended(attention, 192, 64)
    kept = dict(attention.choices)
    tried(monkeypatch)
    attended(attention, 192, 64)
    attended(attention, 240, 60)
    attention.width(129, 33)
    assert attention.choices == kept
    with pytest.raises(ValueError, match="unpack"):
        attention.width(257, 64)


@needs_gpu
@pytest.mark.parametrize("spoil", [torch.zeros_like, _last_row_lost, _nan_in_one_head])
def test_a_kernel_that_computes_something_else_is_not_chosen(
    spoil: Callable[[torch.Tensor], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attention = on_gpu()

    def wrong(query: torch.Tensor, *others: Any) -> torch.Tensor:
        return spoil(KERNELS["flash2"](query, *others))

    known(monkeypatch, "wrong", wrong)
    tried(monkeypatch, "flash2", "wrong")
    attended(attention, 192, 64)
    assert [choice.kernel for choice in attention.choices.values()] == ["flash2"]
    assert "attention kernel wrong, heads of 72, is not used for Shape(rows=256, longest=64)" in caplog.text


@needs_gpu
def test_a_kernel_that_raises_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attention = on_gpu()

    def failing(*given: object) -> torch.Tensor:
        raise RuntimeError("not on this card")

    known(monkeypatch, "failing", failing)
    tried(monkeypatch, "flash2", "failing")
    attended(attention, 192, 64)
    assert [choice.kernel for choice in attention.choices.values()] == ["flash2"]
    assert "not on this card" in caplog.text
    assert "attention kernel failing, heads of 80, is not used" in caplog.text


@needs_gpu
@pytest.mark.parametrize(
    ("times", "fastest"),
    [
        ((1.0, 2.0, 3.0, 4.0), ("flash2", 72)),
        ((4.0, 1.0, 2.0, 3.0), ("flash2", 80)),
        ((4.0, 3.0, 1.0, 2.0), ("again", 72)),
        ((4.0, 3.0, 2.0, 1.0), ("again", 80)),
    ],
)
def test_the_fastest_is_chosen_of_all_kernels_and_widths(
    times: tuple[float, ...], fastest: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = on_gpu()
    from encoder_pool.towers import measured_attention

    clock = iter(times)
    monkeypatch.setattr(measured_attention, "_replay_us", lambda run: next(clock))
    known(monkeypatch, "again", KERNELS["flash2"])
    tried(monkeypatch, "flash2", "again")
    attended(attention, 192, 64)
    assert list(attention.choices.values()) == [(*fastest, 1.0)]


@needs_gpu
def test_nothing_is_measured_in_a_capture_and_what_was_measured_is_known_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention = on_gpu()
    tried(monkeypatch, "flash2")
    known = attention.width(256, 64)
    captured = torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        captured += 1  # A recording of nothing is warned of.
        assert attention.width(256, 64) == known
        with pytest.raises(AssertionError, match="warmed up before it is captured"):
            attention.width(512, 64)

"""The choice of a kernel by measuring: how it is kept and told, and, on a GPU, that it is made well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
import torch

from encoder_pool.core import Cost, DType
from encoder_pool.towers.adapter import KernelChoice, Tunes
from encoder_pool.towers.attention import KERNELS, Tunable, masked, masked_rows
from encoder_pool.towers.fused.fuse import operations_for
from encoder_pool.towers.fused.operations import Operations, PlainOperations
from tests.gpu import needs_gpu

from .cases import model_config
from .grid_checkpoints import GridCase
from .kernels import gpu_attention

if TYPE_CHECKING:
    from encoder_pool.towers.measured_attention import MeasuredAttention

HEADS, WIDTH = 3, 72
LENGTHS = (64, 0, 64, 40, 24)
"""Of segments as a rung has them: full ones, an empty one, one that is not full, and a tail."""
ROWS = sum(LENGTHS)
BUDGET_S = 0.01


def measured(operations: Operations[Any, Any] | None = None) -> MeasuredAttention:
    """Of heads like those in `test_gpu_attention`, for which kernels are compiled already."""
    gpu_attention()
    from encoder_pool.towers.measured_attention import MeasuredAttention

    return MeasuredAttention(HEADS, WIDTH, torch.bfloat16, operations or PlainOperations())


def chosen(rows: int, longest: int, kernel: str = "masked", width: int = WIDTH) -> KernelChoice:
    return KernelChoice(rows, longest, kernel, width, 12.34)


def known(monkeypatch: pytest.MonkeyPatch, name: str, kernel: Any) -> None:
    """Let it be a kernel, for this test alone."""
    monkeypatch.setitem(KERNELS, name, kernel)


def tried(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these be the candidates, whatever there is."""
    from encoder_pool.towers import measured_attention

    monkeypatch.setattr(measured_attention, "candidates", lambda dtype, width, longest: names)


def offsets_of(lengths: tuple[int, ...] = LENGTHS, device: str = "cpu") -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


@pytest.mark.parametrize(
    ("rows", "longest", "width"),
    [
        (4096, 64, 72),
        (4096, 4096, 80),
        (100, 60, 72),
        (100_000, 64, 72),
        (100_000, 50_000, 96),
        (16384, 4000, 88),
        (5000, 4000, 80),
        (9000, 5000, 88),
        (4096, 520, 80),
        (4096, 300, 72),
    ],
)
def test_what_was_not_tuned_has_the_choice_of_the_nearest_rung_first_by_length(
    rows: int, longest: int, width: int
) -> None:
    attention = measured()
    shapes = ((4096, 64, 72), (4096, 4096, 80), (16384, 4096, 88), (16384, 16384, 96))
    attention.adopt([chosen(at, segment, width=wide) for at, segment, wide in shapes])
    assert attention.width(rows, longest) == width
    assert len(attention.choices) == len(shapes)


def test_without_any_choice_the_plainest_candidate_serves_at_the_width_of_the_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried(monkeypatch, "masked", "nothing")
    attention = measured()
    assert attention.width(100, 10) == WIDTH
    query, key, value = torch.randn(3, 5, HEADS, WIDTH).unbind()
    offsets = offsets_of((2, 3))
    expected = masked(query, key, value, offsets, 3, 0.5)
    assert torch.equal(attention(query, key, value, offsets, 3, 0.5), expected)
    assert attention.choices == ()


def test_a_choice_is_what_runs_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = measured()
    assert attention.width(5, 3) == WIDTH
    known(monkeypatch, "halved", lambda *given: masked(*given) / 2)
    attention.adopt([chosen(8, 4, "halved", 80)])
    assert attention.width(5, 3) == 80
    query, key, value = torch.randn(3, 5, HEADS, WIDTH).unbind()
    offsets = offsets_of((2, 3))
    expected = masked(query, key, value, offsets, 3, 0.5) / 2
    assert torch.equal(attention(query, key, value, offsets, 3, 0.5), expected)


def test_a_choice_of_a_kernel_that_is_not_here_is_not_taken_over() -> None:
    attention = measured()
    attention.adopt([chosen(8, 4, "of another machine"), chosen(64, 64)])
    assert attention.choices == (chosen(64, 64),)


def test_choices_are_told_from_the_smallest_shape_on() -> None:
    attention = measured()
    attention.adopt([chosen(256, 64), KernelChoice(64, 64, "masked", 80, 2.0)])
    assert list(attention.kernels.items()) == [
        ("attention of 64 rows, 64 a segment", "masked, heads of 80, 2.0 us"),
        ("attention of 256 rows, 64 a segment", "masked, heads of 72, 12.3 us"),
    ]


@pytest.mark.parametrize(
    ("rows", "longest", "is_measured"),
    [
        (4096, 4096, False),
        (3444, 3444, False),
        (4872, 4872, False),
        (2896, 2896, True),
        (4096, 64, True),
        (2896, 4096, True),
        (5793, 5793, True),
    ],
)
def test_a_shape_is_measured_unless_one_that_is_near_was(
    rows: int, longest: int, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = measured()
    attention.adopt([chosen(4096, 4096, width=80)])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(attention, "_fastest", lambda shape, offsets, budget_s: chosen(*shape))
    attention.tune(torch.tensor([0, rows]), longest, BUDGET_S)
    assert (chosen(rows, longest) in attention.choices) == is_measured
    assert attention.width(rows, longest) == (WIDTH if is_measured else 80)


def test_a_shape_that_has_other_candidates_is_measured_however_near(monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_pool.towers import measured_attention

    attention = measured()
    attention.adopt([chosen(4096, 2200, width=80)])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(attention, "_fastest", lambda shape, offsets, budget_s: chosen(*shape))

    def for_short_ones(dtype: object, width: int, longest: int) -> tuple[str, ...]:
        return ("masked", "short") if longest <= 2048 else ("masked",)

    monkeypatch.setattr(measured_attention, "candidates", for_short_ones)
    attention.tune(torch.tensor([0, 4096]), 2048, BUDGET_S)
    assert attention.width(4096, 2048) == WIDTH
    attention.tune(torch.tensor([0, 4096]), 2190, BUDGET_S)
    assert attention.width(4096, 2190) == 80


def test_contenders_take_turns_and_the_least_time_of_each_counts() -> None:
    gpu_attention()
    from encoder_pool.towers.measured_attention import LEAST_ROUNDS, least_us

    turns: list[int] = []
    times = iter(float(us) for us in (9, 5, 6, 4, 8, 7))

    def contender(number: int) -> Callable[[], float]:
        def replay_us() -> float:
            turns.append(number)
            return next(times)

        return replay_us

    assert least_us([contender(0), contender(1)], budget_s=0.0) == [4.0, 5.0]
    assert turns == [0, 1, 1, 0, 0, 1]
    assert LEAST_ROUNDS == 3


def test_no_more_rounds_are_run_than_tell_anything() -> None:
    gpu_attention()
    from encoder_pool.towers.measured_attention import MOST_ROUNDS, least_us

    count: list[int] = []

    def replay_us() -> float:
        count.append(1)
        return 1.0

    least_us([replay_us], budget_s=1e9)
    assert len(count) == MOST_ROUNDS


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


def random_heads(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, 3, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))


def test_some_rows_of_masked_are_those_of_all() -> None:
    query, key, value = random_heads().unbind(1)
    rows = torch.tensor([0, 63, 64, 150, ROWS - 1], dtype=torch.int32)
    some = masked_rows(rows, query[rows], key, value, offsets_of(), 0.5)
    torch.testing.assert_close(some, masked(query, key, value, offsets_of(), 64, 0.5)[rows])


@pytest.mark.parametrize("spoil", [_halved, _last_row_lost, _nan_in_one_head])
@pytest.mark.parametrize("checked", ["every row", "some rows"])
def test_a_result_is_compared_with_masked_and_a_wrong_one_refused(
    spoil: Callable[[torch.Tensor], torch.Tensor], checked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_attention()
    from encoder_pool.towers import measured_attention

    if checked == "some rows":
        monkeypatch.setattr(measured_attention, "CHECKED_SCORES", 0)
    heads = random_heads()
    sample = measured_attention._Sample.of(heads, offsets_of(), 0.5)
    assert len(sample.rows) == (ROWS if checked == "every row" else measured_attention.LEAST_CHECKED)
    query, key, value = heads.unbind(1)
    right = masked(query, key, value, offsets_of(), 64, 0.5)
    sample.check(torch.nn.functional.pad(right, (0, 8)))
    with pytest.raises(ValueError, match="not those of masked"):
        sample.check(spoil(right))


class NotedAttention:
    """Notes what it is tuned for."""

    kernels: dict[str, str] = {}  # noqa: RUF012
    choices: tuple[KernelChoice, ...] = ()

    def __init__(self) -> None:
        self.tuned: list[tuple[list[int], int, float]] = []

    def adopt(self, choices: object) -> None:
        raise AssertionError

    def tune(self, offsets: torch.Tensor, longest: int, budget_s: float) -> None:
        self.tuned.append((offsets.tolist(), longest, budget_s))

    def width(self, rows: int, longest: int) -> int:
        raise AssertionError

    def __call__(self, *given: object) -> torch.Tensor:
        raise AssertionError


@pytest.mark.parametrize(("family", "kinds"), [("qwen2_5_vl", 2), ("qwen3_vl", 1)])
def test_a_tower_is_tuned_for_the_segments_of_a_rung_and_for_its_windows(
    family: str, kinds: int, tmp_path: Any
) -> None:
    case = GridCase.at(family, tmp_path)
    assert isinstance(case.tower, Tunes)
    tower: Any = case.tower
    tower.tune({}, 1.0)  # Of a kernel that was named nothing is chosen.
    assert tower.choices == ()
    attention = NotedAttention()
    assert isinstance(attention, Tunable)
    tower._fused = replace(tower._fused, attention=attention)
    capacity: Cost = case.adapter.capacity(64)
    metadata = tower.metadata(tower.fill(capacity), capacity)
    tower.tune(metadata, 1.0)
    assert len(attention.tuned) == kinds
    assert all(offsets[-1] == capacity.patch_rows for offsets, _, _ in attention.tuned)
    assert attention.tuned[0][1] == capacity.longest
    assert sum(budget_s for _, _, budget_s in attention.tuned) == pytest.approx(1.0)


def on_gpu() -> MeasuredAttention:
    return measured(operations_for(model_config(DType.BFLOAT16, "cuda")))


def tune(attention: MeasuredAttention, lengths: tuple[int, ...] = LENGTHS, longest: int = 64) -> KernelChoice:
    """What is chosen for segments of these lengths, and nothing else."""
    before = set(attention.choices)
    with torch.inference_mode():
        attention.tune(offsets_of(lengths, "cuda"), longest, BUDGET_S)
    (choice,) = set(attention.choices) - before
    return choice


def assert_attends(attention: MeasuredAttention) -> None:
    """In these segments, as a block asks for it."""
    width = attention.width(ROWS, 64)
    heads = random_heads().to("cuda", torch.bfloat16)
    query, key, value = torch.nn.functional.pad(heads, (0, width - WIDTH)).unbind(1)
    offsets = offsets_of(device="cuda")
    result = attention(query, key, value, offsets, 64, WIDTH**-0.5)
    exact = masked(query.float(), key.float(), value.float(), offsets, 64, WIDTH**-0.5)
    # Weights and sums are rounded to eight bits each; values are below five.
    torch.testing.assert_close(result.float(), exact, rtol=2**-7, atol=2**-7)


@needs_gpu
@pytest.mark.parametrize(("lengths", "longest"), [(LENGTHS, 64), ((4096,) * 4 + (0, 0), 4096), ((1,), 1)])
def test_a_candidate_is_chosen_for_the_very_rows(lengths: tuple[int, ...], longest: int) -> None:
    choice = tune(on_gpu(), lengths, longest)
    assert (choice.rows, choice.longest) == (sum(lengths), longest)
    assert choice.kernel in gpu_attention().candidates(torch.bfloat16, WIDTH, longest)
    assert choice.width in (72, 80)
    assert choice.us > 0


@needs_gpu
def test_what_is_chosen_computes_what_masked_does_and_is_told() -> None:
    attention = on_gpu()
    choice = tune(attention)
    assert_attends(attention)
    assert attention.kernels == {
        f"attention of {ROWS} rows, 64 a segment": (
            f"{choice.kernel}, heads of {choice.width}, {choice.us:.1f} us"
        )
    }


@needs_gpu
def test_what_was_measured_or_adopted_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, other = on_gpu(), on_gpu()
    tune(attention)
    kept = attention.choices
    other.adopt(kept)
    tried(monkeypatch, "nothing")
    for each in (attention, other):
        each.tune(offsets_of(device="cuda"), 64, BUDGET_S)
        each.tune(offsets_of((ROWS,), "cuda"), 64, BUDGET_S)
        assert each.choices == kept
        assert_attends(each)


@needs_gpu
@pytest.mark.parametrize("spoil", [torch.zeros_like, _last_row_lost, _nan_in_one_head])
@pytest.mark.parametrize("plainest", [True, False], ids=["the plainest", "another"])
def test_a_kernel_that_computes_something_else_is_not_chosen(
    spoil: Callable[[torch.Tensor], torch.Tensor],
    plainest: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wrong(query: torch.Tensor, *others: Any) -> torch.Tensor:
        return spoil(KERNELS["flash2"](query, *others))

    known(monkeypatch, "wrong", wrong)
    tried(monkeypatch, *(("wrong", "flash2") if plainest else ("flash2", "wrong")))
    attention = on_gpu()
    assert tune(attention).kernel == "flash2"
    assert "not used for Shape(rows=192, longest=64); wrong, heads of 72: its numbers are not" in caplog.text
    assert_attends(attention)


def _failing(*given: object) -> torch.Tensor:
    raise RuntimeError("not on this card")


def _failing_in_a_capture(query: torch.Tensor, *others: Any) -> torch.Tensor:
    rows = KERNELS["flash2"](query, *others)
    rows[0, 0, 0].item()  # which waits for the device, and that no recording can
    return rows


@needs_gpu
@pytest.mark.parametrize("fails", [_failing, _failing_in_a_capture])
@pytest.mark.parametrize("plainest", [True, False], ids=["the plainest", "another"])
def test_a_kernel_that_raises_is_not_chosen_and_breaks_nothing(
    fails: Callable[..., torch.Tensor],
    plainest: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    known(monkeypatch, "failing", fails)
    tried(monkeypatch, *(("failing", "flash2") if plainest else ("flash2", "failing")))
    attention = on_gpu()
    assert tune(attention).kernel == "flash2"
    assert "failing, heads of 80" in caplog.text
    assert_attends(attention)
    assert tune(attention, (64, 64)).kernel == "flash2"


@needs_gpu
def test_where_no_kernel_works_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "failing", _failing)
    known(monkeypatch, "wrong", lambda query, *others: torch.zeros_like(query))
    tried(monkeypatch, "failing", "wrong")
    with pytest.raises(RuntimeError, match=r"no attention kernel works .*failing, heads of 72: not on"):
        tune(on_gpu())
    with pytest.raises(RuntimeError, match="wrong, heads of 80: its numbers are not those of masked"):
        tune(on_gpu())


@needs_gpu
@pytest.mark.parametrize(
    ("times", "fastest"),
    [
        ((1.0, 2.0, 3.0, 4.0), ("flash2", 72)),
        ((4.0, 1.0, 2.0, 3.0), ("flash2", 80)),
        ((4.0, 3.0, 1.0, 2.0), ("again", 72)),
        ((4.0, 3.0, 2.0, 1.0), ("again", 80)),
        ((4.0, 1.01, 1.0, 2.0), ("flash2", 80)),
    ],
)
def test_the_fastest_is_chosen_of_all_kernels_and_widths_and_the_plainer_of_equal_ones(
    times: tuple[float, ...], fastest: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from encoder_pool.towers import measured_attention

    monkeypatch.setattr(measured_attention, "least_us", lambda replays, budget_s: list(times))
    known(monkeypatch, "again", KERNELS["flash2"])
    tried(monkeypatch, "flash2", "again")
    choice = tune(on_gpu())
    assert (choice.kernel, choice.width) == fastest


@needs_gpu
def test_nothing_is_measured_in_a_capture_and_what_was_measured_is_known_there() -> None:
    attention = on_gpu()
    width = tune(attention).width
    offsets = offsets_of((64,), "cuda")
    captured = torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        captured += 1  # A recording of nothing is warned of.
        assert attention.width(ROWS, 64) == width
        with pytest.raises(AssertionError, match="tuned before it is captured"):
            attention.tune(offsets, 64, BUDGET_S)

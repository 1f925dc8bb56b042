"""Names on the command line, and what they stand for."""

from __future__ import annotations

import pytest

from encoder_pool.bench.cases import TOWERS, WORKLOADS, Case, Subject, Traffic
from encoder_pool.core import Grid
from encoder_pool.towers.families import family_of
from encoder_pool.weights import ensure

GEOMETRY = family_of(ensure("config:qwen2.5-vl-tiny"))[1]


def test_a_case_is_square_images_of_so_many_tokens() -> None:
    case = Case.named("8x256")
    assert (case.name, case.tokens) == ("8x256", 2048)
    assert case.grids(GEOMETRY) == (Grid(1, 32, 32),) * 8


@pytest.mark.parametrize("text", ["", "8", "x64", "8x", "0x64", "8x0", "8X64", "8x64 ", "-1x64", "8x6.4"])
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no case; one is IMAGESxTOKENS"):
        Case.named(text)


def test_tokens_that_make_no_square_are_refused() -> None:
    with pytest.raises(ValueError, match="case 2x65: images are square, so their 65 tokens must be a square"):
        Case.named("2x65")


def test_a_tower_has_a_short_name_or_is_any_checkpoint() -> None:
    assert Subject.named("qwen3") == Subject("qwen3", "config:qwen3-vl-8b")
    assert Subject.named("config:qwen3.5-9b") == Subject("qwen3.5-9b", "config:qwen3.5-9b")
    assert Subject.named("/models/My-VL/") == Subject("My-VL", "/models/My-VL/")
    assert [Subject.named(text).given for text in ("qwen3", "/models/My-VL")] == ["qwen3", "/models/My-VL"]


def test_every_short_name_has_its_configuration() -> None:
    for checkpoint in TOWERS.values():
        assert ensure(checkpoint).is_dir()


def test_traffic_is_the_same_in_every_run_and_mixes_all_sides() -> None:
    traffic = Traffic((56, 84, 140), a_call=4, calls=8, waiting=16)
    grids = traffic.grids(GEOMETRY)
    assert grids == traffic.grids(GEOMETRY)
    assert len(grids) == 4 * 8 + 16
    assert set(grids) == {Grid(1, side, side) for side in (4, 6, 10)}


def test_a_side_is_rounded_to_whole_tokens() -> None:
    assert Traffic((512,), 1, 1, 0).grids(GEOMETRY) == (Grid(1, 36, 36),)
    assert Traffic((5,), 1, 1, 0).grids(GEOMETRY) == (Grid(1, 2, 2),)


def test_a_quick_run_has_the_same_cases_on_fewer_rungs() -> None:
    for workload in WORKLOADS.values():
        quick = workload.quick()
        assert (quick.cases, quick.subjects) == (workload.cases, workload.subjects)
        assert quick.ladder.rungs_per_octave is None
        assert (quick.ladder.min, quick.ladder.max) == (workload.ladder.min, workload.ladder.max)
        assert quick.traffic.calls < workload.traffic.calls

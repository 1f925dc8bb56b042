from __future__ import annotations

from collections.abc import Callable

import pytest

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.reach import MIB, Bounds, Probe, reach

TIERED = tuple(
    Rung(budget, Cost(budget, budget, budget, 0, longest))
    for budget in (64, 90, 128, 181, 256, 362, 512, 724, 1024)
    for longest in dict.fromkeys((64, budget))
)
WIDEST = tuple(rung for rung in TIERED if rung.capacity.longest == rung.budget)


class FakeProber:
    """A device on which a size takes what these functions of its rows say."""

    def __init__(
        self,
        ms: Callable[[int], float] = lambda rows: 0.0,
        num_bytes: Callable[[int], int] = lambda rows: 0,
        free_bytes: int = 1 << 40,
        fails_at: int = 1 << 30,
    ) -> None:
        self.free_bytes = free_bytes
        self.tried: list[int] = []
        self._ms = ms
        self._num_bytes = num_bytes
        self._fails_at = fails_at

    def probe(self, rung: Rung, clock: Callable[[], float]) -> Probe:
        rows = rung.capacity.patch_rows
        self.tried.append(rows)
        if rows >= self._fails_at:
            raise RuntimeError("out of memory")
        return Probe(self._ms(rows), self._num_bytes(rows))


def found(
    prober: FakeProber, max_pack_ms: float = 60.0, reserve_bytes: int = 0
) -> tuple[list[int], set[str]]:
    """Budgets within the bounds, and what is said of the others."""
    result = reach(prober, TIERED, Bounds(max_pack_ms, reserve_bytes), lambda: 0.0)
    kept = [rung for rung in WIDEST if rung in result.ladder]
    assert result.ladder == tuple(rung for rung in TIERED if rung.budget <= kept[-1].budget)
    assert (*result.ladder, *(lost.rung for lost in result.beyond)) == TIERED
    return [rung.budget for rung in kept], {lost.why for lost in result.beyond}


def test_without_a_bound_that_counts_all_rungs_are_kept() -> None:
    prober = FakeProber(lambda rows: rows / 100, lambda rows: rows * MIB)
    assert found(prober) == ([rung.budget for rung in WIDEST], set())
    assert prober.tried == [64, 128, 256, 512, 1024]


def test_rungs_that_would_take_too_long_are_beyond_it_and_are_not_run() -> None:
    prober = FakeProber(lambda rows: 0.1 * rows)
    budgets, reasons = found(prober)
    assert budgets[-1] == 512
    assert reasons == {
        "about 72 ms; ladder.max_pack_ms is 60",
        "about 102 ms; ladder.max_pack_ms is 60",
    }
    assert prober.tried == [64, 128, 256, 512]


def test_what_eager_spends_on_launching_does_not_count() -> None:
    budgets, _ = found(FakeProber(lambda rows: 50.0), max_pack_ms=40)
    assert budgets[-1] == 1024
    budgets, _ = found(FakeProber(lambda rows: 50.0 + 0.1 * rows), max_pack_ms=40)
    assert budgets[-1] == 362


def test_rungs_that_would_not_fit_beside_the_reserve_are_beyond_it_and_are_not_run() -> None:
    prober = FakeProber(num_bytes=lambda rows: rows * MIB, free_bytes=700 * MIB)
    budgets, reasons = found(prober, reserve_bytes=300 * MIB)
    assert budgets[-1] == 362
    assert "about 512 MiB; 400 MiB are free beside ladder.reserve_bytes" in reasons
    assert prober.tried == [64, 128, 256]


def test_a_size_that_fails_ends_the_ladder_below_it_with_its_reason() -> None:
    prober = FakeProber(fails_at=512)
    budgets, reasons = found(prober)
    assert budgets[-1] == 362
    assert reasons == {"out of memory"}
    assert prober.tried == [64, 128, 256, 512]


@pytest.mark.parametrize(
    "prober", [FakeProber(fails_at=1), FakeProber(free_bytes=0, num_bytes=lambda rows: rows)]
)
def test_the_smallest_budget_is_always_left_to_try(prober: FakeProber) -> None:
    assert found(prober)[0] == [64]


@pytest.mark.parametrize(
    ("prober", "is_memory_bound"),
    [
        (FakeProber(), False),
        (FakeProber(lambda rows: float(rows)), False),
        (FakeProber(num_bytes=lambda rows: rows, free_bytes=500), True),
        (FakeProber(fails_at=512), True),
    ],
)
def test_whether_memory_ended_the_ladder_is_told(prober: FakeProber, is_memory_bound: bool) -> None:
    result = reach(prober, TIERED, Bounds(60.0, 0), lambda: 0.0)
    assert result.is_memory_bound == is_memory_bound

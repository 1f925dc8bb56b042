from __future__ import annotations

import pytest

from encoder_pool.core import Grid
from encoder_pool.graphs.counters import EagerReason, Tally
from encoder_pool.graphs.mismatch import BatchMismatch
from tests.graphs.towers import (
    DenseTower,
    RaggedTower,
    captured,
    clip_batch,
    picture_batch,
    ragged_ladder,
    strip,
)

LADDER = ragged_ladder(4, 8, 16)


def test_counters_add_up_to_the_items() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    runner.run(clip_batch(tower, strip(1), strip(2)), 0)
    runner.run(clip_batch(tower, strip(3)), 0)
    runner.run(clip_batch(tower, strip(16)), 2)
    runner.run(clip_batch(tower, strip(5)), None)
    runner.run(clip_batch(tower, strip(17)), None)
    runner.run(clip_batch(tower, Grid(5, 1, 4)), None)
    counters = runner.counters
    assert counters.replays == {4: Tally(2, 3, 24, 32), 8: Tally(), 16: Tally(1, 1, 64, 64)}
    assert counters.eager == {
        EagerReason.CHEAPER: Tally(1, 1, 20, 20),
        EagerReason.FITS_NO_RUNG: Tally(2, 2, 88, 88),
    }
    assert counters.total == Tally(6, 7, 196, 204)
    assert counters.replays[4].padding == pytest.approx(0.25)
    assert Tally().padding == 0


def test_counters_are_a_snapshot_and_start_again_at_zero() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    before = runner.counters
    runner.run(clip_batch(tower, strip(1)), 0)
    assert before.total == Tally()
    assert runner.counters.total.items == 1
    runner.reset_counters()
    assert runner.counters == before


def test_a_refused_pack_is_not_counted() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    with pytest.raises(BatchMismatch):
        runner.run(clip_batch(tower, strip(5)), 0)
    assert runner.counters.total == Tally()


def test_without_a_ladder_everything_is_eager() -> None:
    tower = DenseTower()
    runner = captured(tower, ())
    runner.run(picture_batch(tower, 2), None)
    assert runner.counters.eager == {EagerReason.NO_LADDER: Tally(1, 2, 6, 6)}

"""Fill on mixed images of 224 to 1008 pixels a side, 28 pixels to a token: ours against next-fit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from encoder_pool.core import Cost, Pack, Rung
from encoder_pool.graphs.ladder import budgets
from encoder_pool.graphs.plan import CostTable, Planner
from tests.graphs.next_fit import next_fit
from tests.graphs.predicted import predicted_ms

DRAWS = 60


def tokens(budget: int) -> Rung:
    return Rung(budget, Cost(4 * budget, budget, 64))


POWERS_OF_TWO = tuple(map(tokens, budgets(64, 4096)))
FOUR_AN_OCTAVE = tuple(map(tokens, budgets(64, 4096, 4)))


def linear_table(ladder: Sequence[Rung]) -> CostTable:
    """Milliseconds as a captured tower of 300 M parameters has them, roughly; eager is the last resort."""
    rung_ms = tuple(0.3 + 0.0035 * rung.capacity.patch_rows for rung in ladder)
    return CostTable(rung_ms, 1000.0, 1.0)


def mixed_images(count: int, random_: random.Random) -> list[Cost]:
    sides = [(random_.randint(8, 36), random_.randint(8, 36)) for _ in range(count)]
    return [Cost(4 * height * width, height * width, 1) for height, width in sides]


def fill(packs: Sequence[Pack], costs: Sequence[Cost], ladder: Sequence[Rung]) -> float:
    replayed = [ladder[pack.rung].capacity.patch_rows for pack in packs if pack.rung is not None]
    assert len(replayed) == len(packs), "no item of this mix is oversize"
    return Cost.total(costs).patch_rows / sum(replayed)


def mean_fills(count: int, ladder: Sequence[Rung]) -> tuple[float, float]:
    """(next-fit, ours), over the same draws; ours is never predicted to be dearer."""
    random_, table, fills = random.Random(count), linear_table(ladder), []
    planner = Planner(ladder, table)
    for _ in range(DRAWS):
        costs = mixed_images(count, random_)
        theirs, ours = next_fit(costs, ladder), planner.plan(costs)
        assert predicted_ms(ours, costs, table) <= predicted_ms(theirs, costs, table) + 1e-3
        fills.append((fill(theirs, costs, ladder), fill(ours, costs, ladder)))
    return sum(theirs for theirs, _ in fills) / DRAWS, sum(ours for _, ours in fills) / DRAWS


@pytest.mark.parametrize(
    ("count", "next_fit_at_most", "ours_at_least"),
    [(2, 0.75, 0.77), (4, 0.78, 0.86), (8, 0.85, 0.91), (16, 0.88, 0.94), (32, 0.91, 0.95)],
)
def test_on_powers_of_two_ours_pads_less_than_next_fit(
    count: int, next_fit_at_most: float, ours_at_least: float
) -> None:
    theirs, ours = mean_fills(count, POWERS_OF_TWO)
    assert theirs < next_fit_at_most
    assert ours > ours_at_least


@pytest.mark.parametrize(("count", "ours_at_least"), [(1, 0.91), (2, 0.93), (8, 0.97), (32, 0.98)])
def test_four_rungs_an_octave_leave_a_few_per_cent_of_padding(count: int, ours_at_least: float) -> None:
    _, ours = mean_fills(count, FOUR_AN_OCTAVE)
    assert ours > ours_at_least


def test_packs_bound_late_from_a_full_queue_pad_as_little() -> None:
    random_, packs, packed = random.Random(0), [], []
    planner = Planner(FOUR_AN_OCTAVE, linear_table(FOUR_AN_OCTAVE))
    waiting = mixed_images(64, random_)
    for _ in range(200):
        pack = planner.next_pack(waiting)
        packs.append(pack)
        packed += [waiting[member] for member in pack.members]
        rest = [cost for position, cost in enumerate(waiting) if position not in pack.members]
        waiting = rest + mixed_images(len(pack.members), random_)
    assert fill(packs, packed, FOUR_AN_OCTAVE) > 0.97

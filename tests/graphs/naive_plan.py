"""What the planner is to find, by looking at every run of every order. Slow, and the same plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from encoder_pool.core import Cost, Pack, Rung
from encoder_pool.graphs.plan import CostTable


class Rest(NamedTuple):
    """The cheapest packs of an order from some item on."""

    ms: float
    packs: tuple[Pack, ...]


class Candidate(NamedTuple):
    """A run as the first pack, and the cheapest rest after it. The least is taken: by milliseconds, replays
    before eager, of replays the longest and of eager the shortest, and by the rung's rank."""

    ms: float
    is_eager: bool
    length: int
    rank: int
    rest: Rest
    pack: Pack


def naive_plan(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> tuple[Pack, ...]:
    capacities = [rung.capacity for rung in ladder]
    fitting = [item for item, cost in enumerate(costs) if any(map(cost.fits, capacities))]
    alone = [Pack((item,), None) for item in range(len(costs)) if item not in fitting]
    orders = (
        fitting,
        sorted(fitting, key=lambda item: costs[item].patch_rows),
        sorted(fitting, key=lambda item: (costs[item].longest, costs[item].patch_rows)),
    )
    plans = [cheapest_cut(order, costs, capacities, table) for order in orders]
    return tuple(sorted([*alone, *min(plans, key=lambda plan: plan.ms).packs]))


def cheapest_cut(
    order: Sequence[int], costs: Sequence[Cost], capacities: Sequence[Cost], table: CostTable
) -> Rest:
    rests = [Rest(0.0, ())]  # of the items from a position on, the last position first
    for start in reversed(range(len(order))):
        totals = accumulate(costs[item] for item in order[start:])
        candidates = []
        for length, (total, rest) in enumerate(zip(totals, reversed(rests), strict=True), start=1):
            held_by = [rung for rung, capacity in enumerate(capacities) if total.fits(capacity)]
            if not held_by:
                break
            members = tuple(sorted(order[start : start + length]))
            rung = fastest(held_by, capacities, table)
            ms = table.rung_ms[rung] + table.pack_ms + rest.ms
            candidates.append(Candidate(ms, False, -length, rung, rest, Pack(members, rung)))
            ms = table.eager_fixed_ms + table.eager_row_ms * total.patch_rows + table.pack_ms + rest.ms
            candidates.append(Candidate(ms, True, length, 0, rest, Pack(members, None)))
        best = min(candidates, key=lambda candidate: candidate[:4])
        rests.append(Rest(best.ms, (best.pack, *best.rest.packs)))
    return rests[-1]


def fastest(held_by: Sequence[int], capacities: Sequence[Cost], table: CostTable) -> int:
    """Of equally fast rungs the first that no later one of them contains."""
    least_ms = min(table.rung_ms[rung] for rung in held_by)
    equal = [rung for rung in held_by if table.rung_ms[rung] == least_ms]
    return next(
        rung
        for rung in equal
        if not any(capacities[rung].fits(capacities[other]) for other in equal if other > rung)
    )

"""Packing: which items share a replay, and which rung runs them, for the least predicted milliseconds.

An order of the items is cut into packs by dynamic programming, which is exact for that order; the orders
tried are FIFO, by size and by longest segment, and the cheapest plan wins. The plan is fair: the pack of
the oldest item comes first. An item that fits no rung runs eagerly, alone. Rungs need no order: one may hold
more rows and another longer segments.

What waits is planned again for every pack, on the thread that serves the requests, so it must be quick:
numpy finds the few runs of items that can be a pack of a cheapest plan, and the loop in Python looks at no
others. Knows nothing of towers, clocks or queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from encoder_pool.core import Cost, Pack, Rung
from encoder_pool.graphs.partition import cheapest_cuts
from encoder_pool.graphs.runs import Ints, find_runs, fits, shapes_of


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of a pack, measured or assumed.

    rung_ms         one replay of each rung, in the ladder's order
    eager_fixed_ms  an eager run costs this ...
    eager_row_ms    ... and this for every patch row
    pack_ms         what a pack costs beside its run; never zero, so that of two plans that cost the same
                    the one with fewer packs wins
    """

    rung_ms: tuple[float, ...]
    eager_fixed_ms: float
    eager_row_ms: float
    pack_ms: float = 1e-6


def proportional(ladder: Sequence[Rung], row_ms: float = 1.0) -> CostTable:
    """The table to assume before anything was measured: a replay costs its rows, eager is the last resort."""
    rung_ms = tuple(row_ms * rung.capacity.patch_rows for rung in ladder)
    return CostTable(rung_ms, max(rung_ms, default=0.0), row_ms)


class Planner:
    """Plans on one ladder by one table."""

    def __init__(self, ladder: Sequence[Rung], table: CostTable) -> None:
        """Raises ValueError if the table is that of another ladder."""
        if len(table.rung_ms) != len(ladder):
            raise ValueError(f"the cost table has {len(table.rung_ms)} rungs, the ladder {len(ladder)}")
        self._table = table
        self._shapes = shapes_of(_counters([rung.capacity for rung in ladder]), table.rung_ms, table.pack_ms)
        self._eager_ms = table.pack_ms + table.eager_fixed_ms
        self._capacities = [ladder[rung].capacity for rung in self._shapes.rungs]

    def plan(self, costs: Sequence[Cost]) -> tuple[Pack, ...]:
        """Packs of the items, oldest item first; `costs` is FIFO, `Pack.members` are positions in it.

        Every item is in exactly one pack and every pack fits its rung. Eager packs of several items, made
        where the table says that eager is cheaper, stay within some rung, so that their memory is bounded.
        """
        return tuple(sorted(self._packs(costs)))

    def next_pack(self, costs: Sequence[Cost]) -> Pack:
        """The pack to dispatch now: that of the oldest item in the best plan of the waiting items.

        The rest of the plan is thrown away; it is made again, with whatever has arrived, for the next pack.
        """
        if not costs:
            raise ValueError("nothing waits to be packed")
        return next(pack for pack in self._packs(costs) if pack.members[0] == 0)

    def _packs(self, costs: Sequence[Cost]) -> Iterator[Pack]:
        """Those of the best plan, in no order."""
        if len(costs) == 1:
            yield self._alone(costs[0])
            return
        asked = _counters(costs)
        is_held = fits(asked, self._shapes.widest).any(axis=1)
        held = np.flatnonzero(is_held)
        if len(held) < len(costs):
            yield from (Pack((item,), None) for item in np.flatnonzero(~is_held).tolist())
            asked = asked[:, held]
        if len(held):
            yield from self._cheapest_partition(held.tolist(), asked)

    def _alone(self, cost: Cost) -> Pack:
        """The pack of an item that waits alone, as most do: numpy is not worth it."""
        shape = next((shape for shape, held in enumerate(self._capacities) if cost.fits(held)), None)
        eager_ms = self._eager_ms + self._table.eager_row_ms * cost.patch_rows
        if shape is None or eager_ms < self._shapes.ms[shape]:
            return Pack((0,), None)
        return Pack((0,), self._shapes.rungs[shape])

    def _cheapest_partition(self, items: Sequence[int], asked: Ints) -> Iterator[Pack]:
        """The packs of the cheapest contiguous partition over the orders tried; FIFO wins a tie."""
        size, rows, longest = len(items), asked[0], asked[4]
        orders = [np.arange(size), rows.argsort(kind="stable"), np.lexsort((rows, longest))]
        line = np.concatenate([*{order.tobytes(): order for order in orders}.values()])
        runs = find_runs(asked.take(line, axis=1), size, self._table.eager_row_ms, self._shapes)
        cuts = cheapest_cuts(runs, size, self._eager_ms)
        places = line.tolist()
        for start, end, shape in cuts:
            members = sorted(items[place] for place in places[start:end])
            yield Pack(tuple(members), None if shape is None else self._shapes.rungs[shape])


_COUNTERS = attrgetter("patch_rows", "out_rows", "sequences", "windows", "longest")


def _counters(costs: Sequence[Cost]) -> Ints:
    """(5, items): four counters that add up, and the longest segment."""
    flat = np.fromiter(chain.from_iterable(map(_COUNTERS, costs)), np.int64, 5 * len(costs))
    return flat.reshape(len(costs), 5).T

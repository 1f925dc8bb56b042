"""Packing: which items share a replay, and which rung runs them, for the least predicted milliseconds.

An order of the items is cut into packs by dynamic programming, which is exact for that order; the orders
tried are FIFO, by size and by longest segment, and the cheapest plan wins. The plan is fair: the pack of
the oldest item comes first. An item that fits no rung runs eagerly, alone. Rungs need no order: one may hold
more rows and another longer segments. Pure Python and numpy; knows nothing of towers, clocks or queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, Pack, Rung

TIE = 1 + 1e-9
"""Of plans that cost the same the one whose first pack is fuller: the rest is planned again, with more."""


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


def plan(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> tuple[Pack, ...]:
    """Packs of the items, oldest item first; `costs` is FIFO, `Pack.members` are positions in it.

    Every item is in exactly one pack and every pack fits its rung. Eager packs of several items, made where
    the table says that eager is cheaper, stay within some rung, so that their memory is bounded.
    """
    if len(table.rung_ms) != len(ladder):
        raise ValueError(f"the cost table has {len(table.rung_ms)} rungs, the ladder {len(ladder)}")
    if not costs:
        return ()
    if not ladder:
        return tuple(Pack((item,), None) for item in range(len(costs)))
    asked, held = _counters(costs), _counters([rung.capacity for rung in ladder])
    is_oversize = ~_fits(asked, held).any(axis=1)
    packs = [Pack((item,), None) for item in np.flatnonzero(is_oversize).tolist()]
    packs += _cheapest_partition(np.flatnonzero(~is_oversize), asked, _shapes(held, table), table)
    return tuple(sorted(packs))


def next_pack(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> Pack:
    """The pack to dispatch now: that of the oldest item in the best plan of the waiting items.

    The rest of the plan is thrown away; it is made again, with whatever has arrived, for the next pack.
    """
    if not costs:
        raise ValueError("nothing waits to be packed")
    return plan(costs, ladder, table)[0]


Ints = npt.NDArray[np.int64]


class _Shapes(NamedTuple):
    """The rungs worth using, the fastest first: none that holds as much is as fast.

    rungs (S,) positions on the ladder; held (S, 5); ms (S,)
    """

    rungs: Ints
    held: Ints
    ms: npt.NDArray[np.float64]


class _Partition(NamedTuple):
    total_ms: float
    packs: list[Pack]


class _Reach(NamedTuple):
    """Looking on from each start, as lists, because the loop over them is plain Python.

    ends           (items, shapes): the end of the longest run of items that this or a faster shape holds
    fastest        (items,): the first shape that holds the item at the start
    is_eager_best  (items,): whether eager is cheaper than a replay for some run from here
    """

    ends: list[list[int]]
    fastest: list[int]
    is_eager_best: list[bool]


def _counters(costs: Sequence[Cost]) -> Ints:
    """(items, 5): four counters that add up, and the longest segment."""
    rows = [(cost.patch_rows, cost.out_rows, cost.sequences, cost.windows, cost.longest) for cost in costs]
    return np.array(rows, dtype=np.int64)


def _fits(asked: Ints, held: Ints) -> npt.NDArray[np.bool_]:
    """(asked, held): whether all of one's counters are within the other's."""
    within = [each[:, None] <= limits for each, limits in zip(asked.T, held.T, strict=True)]
    fits: npt.NDArray[np.bool_] = np.logical_and.reduce(within)
    return fits


def _shapes(held: Ints, table: CostTable) -> _Shapes:
    ms, position = np.array(table.rung_ms), np.arange(len(held))
    is_faster = (ms < ms[:, None]) | (ms == ms[:, None]) & (position > position[:, None])
    is_useful = ~(_fits(held, held) & is_faster).any(axis=1)
    by_ms = np.argsort(ms, kind="stable")
    rungs = by_ms[is_useful[by_ms]]
    return _Shapes(rungs, held[rungs], ms[rungs])


def _cheapest_partition(fifo: Ints, asked: Ints, shapes: _Shapes, table: CostTable) -> list[Pack]:
    """The cheapest contiguous partition over the orders tried; FIFO wins a tie."""
    rows, longest = asked[fifo, 0], asked[fifo, 4]
    orders = [fifo, fifo[np.argsort(rows, kind="stable")], fifo[np.lexsort((rows, longest))]]
    distinct = {order.tobytes(): order for order in orders}.values()
    partitions = [_partition(order.tolist(), asked[order], shapes, table) for order in distinct]
    return min(partitions, key=lambda partition: partition.total_ms).packs


def _partition(order: list[int], asked: Ints, shapes: _Shapes, table: CostTable) -> _Partition:
    """The exact cheapest cut of one order, from the last item backwards.

    A replay costs the same however full it is, and fewer items never cost more, so from every start only
    the longest run that each shape holds needs a look, and only if no faster shape holds it. Eager costs
    its rows, so there every run needs one.
    """
    size = len(order)
    reach = _reach(asked, shapes, table)
    rungs, shape_ms = shapes.rungs.tolist(), (shapes.ms + table.pack_ms).tolist()
    eager_rows_ms = [0.0, *(table.eager_row_ms * np.cumsum(asked[:, 0])).tolist()]
    rest_ms = [inf] * size + [0.0]
    # The eager rows before an end plus the rest after it: the eager run to that end, but for its own start.
    to_end_ms = [inf] * size + [eager_rows_ms[size]]
    cuts: list[tuple[int, int | None]] = [(size, None)] * size
    for start in range(size - 1, -1, -1):
        best, ends, reached = inf, reach.ends[start], start
        for shape in range(reach.fastest[start], len(ends)):
            end = ends[shape]
            if end == reached:
                continue
            reached = end
            total = shape_ms[shape] + rest_ms[end]
            if total <= best * TIE:
                best = total
                cuts[start] = end, rungs[shape]
            if end == ends[-1]:
                break
        if reach.is_eager_best[start]:
            to_ends = to_end_ms[start + 1 : ends[-1] + 1]
            cheapest = min(to_ends)
            total = table.pack_ms + table.eager_fixed_ms + cheapest - eager_rows_ms[start]
            if total < best:
                best = total
                cuts[start] = start + 1 + to_ends.index(cheapest), None
        rest_ms[start] = best
        to_end_ms[start] = best + eager_rows_ms[start]
    return _Partition(rest_ms[0], _cut(order, cuts))


def _reach(asked: Ints, shapes: _Shapes, table: CostTable) -> _Reach:
    size = len(asked)
    before = np.zeros((4, size + 1), dtype=np.int64)
    np.cumsum(asked.T[:4], axis=1, out=before[:, 1:])
    ends = _next_too_long(asked[:, 4], shapes.held[:, 4])
    for total, limits in zip(before, shapes.held.T[:4], strict=True):
        if total[-1] > limits.min():
            np.minimum(ends, np.searchsorted(total, total[:-1, None] + limits, side="right") - 1, out=ends)
    np.maximum.accumulate(ends, axis=1, out=ends)
    fastest = (ends == np.arange(size)[:, None]).sum(axis=1)
    is_eager_best = _is_eager_best(ends, before[0], shapes, table)
    return _Reach(ends.tolist(), fastest.tolist(), is_eager_best)


def _next_too_long(longest: Ints, limits: Ints) -> Ints:
    """(items, shapes): from each item on, the first whose segments are too long for the shape."""
    size = len(longest)
    positions = np.where(longest[:, None] > limits, np.arange(size)[:, None], size)
    return np.minimum.accumulate(positions[::-1], axis=0)[::-1].copy()


def _is_eager_best(ends: Ints, rows_before: Ints, shapes: _Shapes, table: CostTable) -> list[bool]:
    """(items,). A replay is at its worst for the shortest run that no faster shape holds."""
    if table.eager_fixed_ms >= shapes.ms[-1]:
        return [False] * len(ends)
    starts = np.arange(len(ends))
    shortest = np.column_stack((starts, ends[:, :-1])) + 1
    rows = rows_before.take(shortest, mode="clip") - rows_before[starts, None]
    is_cheaper = table.eager_fixed_ms + table.eager_row_ms * rows < shapes.ms
    is_best: list[bool] = np.logical_or.reduce(is_cheaper & (shortest <= ends), axis=1).tolist()
    return is_best


def _cut(order: list[int], cuts: list[tuple[int, int | None]]) -> list[Pack]:
    packs, start = [], 0
    while start < len(order):
        end, rung = cuts[start]
        packs.append(Pack(tuple(sorted(order[start:end])), rung))
        start = end
    return packs

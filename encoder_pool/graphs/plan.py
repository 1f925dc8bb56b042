"""Packing: which items share a replay, and which rung runs them, for the least predicted milliseconds.

An order of the items is cut into packs by dynamic programming, which is exact for that order; the orders
tried are FIFO, by size and by longest segment, and the cheapest plan wins. The plan is fair: the pack of
the oldest item comes first. An item that fits no rung runs eagerly, alone. Rungs need no order: one may hold
more rows and another longer segments.

What waits is planned again for every pack, on the thread that serves the requests, so it must be quick. What
depends on the ladder and the table alone is worked out once; then numpy finds, for all orders in one go, the
few packs that can be part of a cheapest plan, and the loop in Python looks at no others. Knows nothing of
towers, clocks or queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, Pack, Rung

TIE = 1 + 1e-9
"""Of plans that cost the same the one whose first pack is fuller: the rest is planned again, with more."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


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
        self._shapes = _shapes(_counters([rung.capacity for rung in ladder]), np.array(table.rung_ms))

    def plan(self, costs: Sequence[Cost]) -> tuple[Pack, ...]:
        """Packs of the items, oldest item first; `costs` is FIFO, `Pack.members` are positions in it.

        Every item is in exactly one pack and every pack fits its rung. Eager packs of several items, made
        where the table says that eager is cheaper, stay within some rung, so that their memory is bounded.
        """
        asked = _counters(costs)
        is_oversize = ~_fits(asked, self._shapes.widest).any(axis=1)
        packs = [Pack((item,), None) for item in np.flatnonzero(is_oversize).tolist()]
        if len(packs) < len(costs):
            packs += self._cheapest_partition(np.flatnonzero(~is_oversize), asked)
        return tuple(sorted(packs))

    def next_pack(self, costs: Sequence[Cost]) -> Pack:
        """The pack to dispatch now: that of the oldest item in the best plan of the waiting items.

        The rest of the plan is thrown away; it is made again, with whatever has arrived, for the next pack.
        """
        if not costs:
            raise ValueError("nothing waits to be packed")
        return self.plan(costs)[0]

    def _cheapest_partition(self, fifo: Ints, asked: Ints) -> list[Pack]:
        """The cheapest contiguous partition over the orders tried; FIFO wins a tie."""
        size, rows, longest = len(fifo), asked[0, fifo], asked[4, fifo]
        orders = [fifo, fifo[np.argsort(rows, kind="stable")], fifo[np.lexsort((rows, longest))]]
        line = np.concatenate([*{order.tobytes(): order for order in orders}.values()])
        runs = _runs(asked[:, line], size, self._shapes, self._table)
        starts = range(0, len(line), size)
        partitions = [_partition(range(start, start + size), runs, self._table) for start in starts]
        least_ms = min(partition.total_ms for partition in partitions)
        cheapest = next(partition for partition in partitions if partition.total_ms <= least_ms * TIE)
        return [self._pack(line[cut.start : cut.end], cut.shape) for cut in cheapest.cuts]

    def _pack(self, members: Ints, shape: int | None) -> Pack:
        return Pack(tuple(sorted(members.tolist())), None if shape is None else self._shapes.rungs[shape])


class _Limits(NamedTuple):
    """What the shapes hold of one counter.

    values    (V,), distinct and ascending
    of_shape  (S,): where each shape's is among them
    per_row   the least that a shape holds of it for each patch row that it holds
    """

    values: Ints
    of_shape: Ints
    per_row: Fraction

    def follow_rows(self, asked: Ints, patch_rows: Ints) -> bool:
        """Whether items, of any selection, that keep within a shape's patch rows keep within this too.

        So it is where no single item asks for more a row than the shape that holds the least a row: as do
        output rows of a tower that merges so many patches, or segments where small images are rare.
        """
        return bool((asked * self.per_row.denominator <= patch_rows * self.per_row.numerator).all())


class _Shapes(NamedTuple):
    """The rungs worth using, the fastest first: none that holds as much is as fast.

    rungs   (S,) positions on the ladder
    ms      (S,)
    limits  five, in the order of `_counters`
    widest  (5, W): what those hold that no other holds; an item that fits none of them fits no rung
    """

    rungs: list[int]
    ms: Floats
    limits: list[_Limits]
    widest: Ints


class _Runs(NamedTuple):
    """Runs of items on the line that are worth a look, as lists, because the loop over them is plain Python.

    A replay costs the same however full it is, and fewer items never cost more, so from every start only
    the longest run that each shape holds needs a look, and only if no faster shape holds it.

    first           (L + 1,): the runs from a start are those from its first up to the next start's
    ends            (R,): for each start ascending, and so is `shapes`
    shapes          (R,): the fastest that holds the run
    ms              (R,): a pack of it
    is_eager_best   (L,): whether eager is cheaper than a replay for some run from a start
    eager_rows_ms   (L + 1,): the share of all rows before a position in an eager run
    """

    first: list[int]
    ends: list[int]
    shapes: list[int]
    ms: list[float]
    is_eager_best: list[bool]
    eager_rows_ms: list[float]


class _Cut(NamedTuple):
    """A pack as a run on the line; `shape` None is eager."""

    start: int
    end: int
    shape: int | None


class _Partition(NamedTuple):
    total_ms: float
    cuts: list[_Cut]


_COUNTERS = attrgetter("patch_rows", "out_rows", "sequences", "windows", "longest")


def _counters(costs: Sequence[Cost]) -> Ints:
    """(5, items): four counters that add up, and the longest segment."""
    flat = np.fromiter(chain.from_iterable(map(_COUNTERS, costs)), np.int64, 5 * len(costs))
    return flat.reshape(len(costs), 5).T


def _fits(asked: Ints, held: Ints) -> Bools:
    """(asked, held): whether all of one's counters are within the other's."""
    fits: Bools = np.logical_and.reduce(asked[:, :, None] <= held[:, None])
    return fits


def _shapes(held: Ints, ms: Floats) -> _Shapes:
    """From what each rung holds, (5, rungs), and its milliseconds."""
    position = np.arange(len(ms))
    is_faster = (ms < ms[:, None]) | (ms == ms[:, None]) & (position > position[:, None])
    is_useful = ~(_fits(held, held) & is_faster).any(axis=1)
    by_ms = np.argsort(ms, kind="stable")
    rungs = by_ms[is_useful[by_ms]]
    held, ms = held[:, rungs], ms[rungs]
    widest = held[:, _fits(held, held).sum(axis=1) == 1]
    return _Shapes(rungs.tolist(), ms, [_limits(each, held[0]) for each in held], widest)


def _limits(held: Ints, patch_rows: Ints) -> _Limits:
    per_row = map(Fraction, held.tolist(), patch_rows.tolist())
    return _Limits(*np.unique(held, return_inverse=True), min(per_row, default=Fraction(0)))


def _runs(asked: Ints, size: int, shapes: _Shapes, table: CostTable) -> _Runs:
    """The runs on a line of items, (5, L): all orders, of so many items each, one after the other.

    Together they cost numpy no more calls than one of them.
    """
    length = asked.shape[1]
    rows_before = np.concatenate(([0], asked[0].cumsum()))
    # (1 + S, L): the end of the longest run that this or a faster shape holds; the first row is no shape's.
    reached = np.empty((1 + len(shapes.ms), length), dtype=np.int64)
    reached[0] = np.arange(length)
    _reach(asked, size, shapes.limits, out=reached[1:])
    np.maximum.accumulate(reached, axis=0, out=reached)
    starts, of_shape = np.divmod(np.flatnonzero((reached[1:] > reached[:-1]).T), len(shapes.ms))
    faster_ends, ms = reached[of_shape, starts], shapes.ms[of_shape]
    return _Runs(
        first=np.searchsorted(starts, np.arange(length + 1)).tolist(),
        ends=reached[of_shape + 1, starts].tolist(),
        shapes=of_shape.tolist(),
        ms=(ms + table.pack_ms).tolist(),
        is_eager_best=_is_eager_best(starts, faster_ends, ms, rows_before, table),
        eager_rows_ms=(table.eager_row_ms * rows_before).tolist(),
    )


def _reach(asked: Ints, size: int, limits: Sequence[_Limits], out: Ints) -> None:
    """(S, L): the end of the longest run from each start that each shape holds, within the start's order."""
    *summed, longest = asked
    *limits_of_sums, limits_of_longest = limits
    length = len(longest)
    out[:] = np.arange(size, length + 1, size).repeat(size)
    for each, limit in zip(summed, limits_of_sums, strict=True):
        if each is not summed[0] and limit.follow_rows(each, summed[0]):
            continue
        before = np.concatenate(([0], each.cumsum()))
        ends = np.searchsorted(before, before[:-1] + limit.values[:, None], side="right") - 1
        np.minimum(out, ends[limit.of_shape], out=out)
    if longest.max() > limits_of_longest.values[0]:
        is_too_long = longest > limits_of_longest.values[:, None]
        too_long = np.where(is_too_long, np.arange(length), length)
        ends = np.minimum.accumulate(too_long[:, ::-1], axis=1)[:, ::-1]
        np.minimum(out, ends[limits_of_longest.of_shape], out=out)


def _is_eager_best(
    starts: Ints, faster_ends: Ints, ms: Floats, rows_before: Ints, table: CostTable
) -> list[bool]:
    """(L,). A replay is at its worst for the shortest run that no faster shape holds."""
    rows = rows_before[faster_ends + 1] - rows_before[starts]
    is_best = np.zeros(len(rows_before) - 1, dtype=np.bool_)
    is_best[starts[table.eager_fixed_ms + table.eager_row_ms * rows < ms]] = True
    best: list[bool] = is_best.tolist()
    return best


def _partition(order: range, runs: _Runs, table: CostTable) -> _Partition:
    """The exact cheapest cut of one order, which has these places of the line, from the last item backwards.

    Eager costs its rows, so there every run needs a look, up to the longest that some shape holds.
    """
    first, ends, shapes, ms, is_eager_best, eager_rows_ms = runs
    eager_ms = table.pack_ms + table.eager_fixed_ms
    rest_ms = [0.0] * (order.stop + 1)
    # The eager rows before an end plus the rest after it: the eager run to that end, but for its own start.
    to_end_ms = [*rest_ms[1:], eager_rows_ms[order.stop]]
    cuts: list[tuple[int, int | None]] = [(order.stop, None)] * order.stop
    for start in reversed(order):
        best = bound = inf
        for run in range(first[start], first[start + 1]):
            total = ms[run] + rest_ms[ends[run]]
            if total <= bound:
                best, bound, chosen = total, total * TIE, run
        cuts[start] = ends[chosen], shapes[chosen]
        if is_eager_best[start]:
            to_ends = to_end_ms[start + 1 : ends[first[start + 1] - 1] + 1]
            cheapest = min(to_ends)
            total = eager_ms + cheapest - eager_rows_ms[start]
            if total < best:
                best = total
                cuts[start] = start + 1 + to_ends.index(cheapest), None
        rest_ms[start] = best
        to_end_ms[start] = best + eager_rows_ms[start]
    return _Partition(rest_ms[order.start], _cut(order, cuts))


def _cut(order: range, cuts: Sequence[tuple[int, int | None]]) -> list[_Cut]:
    made, start = [], order.start
    while start < order.stop:
        end, shape = cuts[start]
        made.append(_Cut(start, end, shape))
        start = end
    return made

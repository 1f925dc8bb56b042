"""Which runs of items can be a pack of a cheapest plan, and what each of them costs as a replay.

A run is items next to each other on a line. A replay costs the same however full it is, and fewer items never
cost more, so from every start only the longest run that each shape holds needs a look, and of those only few
are left. What depends on the ladder and the table alone is worked out once; the rest is some dozens of calls
of numpy, each for all orders of the items in one go: it is the calls that take most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

SAME = 1e-9
"""Of the milliseconds of a plan: others that cost so much more cost the same, but for rounding."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.unsignedinteger[Any]]
Bools = npt.NDArray[np.bool_]

N = TypeVar("N", np.int64, np.float64)


class Limits(NamedTuple):
    """What the shapes hold of one counter.

    values    (V,), distinct and ascending
    of_shape  (S,): where each shape's is among them
    """

    values: Ints
    of_shape: Ints


class Shapes(NamedTuple):
    """The rungs worth using, the fastest first: none that holds as much is as fast.

    rungs    (S,) positions on the ladder
    ms       (S,): a pack of it
    sums     four, of the counters that add up
    per_row  (2, 3, 1): of the last three of those, the least that a shape holds of it for each patch row that
             it holds, as a numerator and a denominator
    longest  of the longest segment
    tiers    the same, but none where a segment may be as long as the shape has rows
    widest   (5, W): what those hold that no other holds; an item that fits none of them fits no rung
    slowest  (C, S): the shapes as few chains, in each of which a slower one holds no less; for each chain and
             shape the slowest in the chain that is no slower than the shape
    """

    rungs: list[int]
    ms: Floats
    sums: list[Limits]
    per_row: Ints
    longest: Limits
    tiers: Limits
    widest: Ints
    slowest: Ints


class Runs(NamedTuple):
    """The runs from every start on the line, as lists, because the loop over them is plain Python.

    first     (L + 1,): the runs from a start are those from its first up to the next start's
    ends      (R,): for each start ascending, and so is `shapes`
    shapes    (R,): the fastest that holds the run
    over_ms   (R,): what a pack of it costs more than its rows do where they run eagerly
    farthest  (L,): the end of the longest run from a start that some shape holds
    rows_ms   (L + 1,): what all rows before a place cost where they run eagerly
    """

    first: list[int]
    ends: list[int]
    shapes: Ints
    over_ms: list[float]
    farthest: list[int]
    rows_ms: list[float]


def fits(asked: Ints, held: Ints) -> Bools:
    """(asked, held): whether all of one's counters are within the other's."""
    within: Bools = np.logical_and.reduce(asked[:, :, None] <= held[:, None])
    return within


def shapes_of(held: Ints, rung_ms: Sequence[float], pack_ms: float) -> Shapes:
    """From what each rung holds, (5, rungs), its milliseconds, and what a pack costs beside its run."""
    ms, position = np.array(rung_ms), np.arange(len(rung_ms))
    is_faster = (ms < ms[:, None]) | (ms == ms[:, None]) & (position > position[:, None])
    is_useful = ~(fits(held, held) & is_faster).any(axis=1)
    by_ms = np.argsort(ms, kind="stable")
    rungs = by_ms[is_useful[by_ms]]
    held = held[:, rungs]
    holds = fits(held, held)
    rows, *_, longest = held
    return Shapes(
        rungs.tolist(),
        ms[rungs] + pack_ms,
        [_limits(each) for each in held[:4]],
        _per_row(held),
        _limits(longest),
        _limits(np.where(longest >= rows, np.iinfo(np.int64).max, longest)),
        held[:, holds.sum(axis=1) == 1],
        _slowest(holds),
    )


def find_runs(asked: Ints, size: int, eager_row_ms: float, shapes: Shapes) -> Runs:
    """The runs on a line of items, (5, L): all orders, of so many items each, one after the other."""
    length = asked.shape[1]
    places = np.arange(length + 1)
    # (1 + S, L): the end of the longest run that this or a faster shape holds; the first row is no shape's.
    # It is much the largest array, so it has the smallest type that holds a place.
    reached = np.empty((1 + len(shapes.ms), length), dtype=np.min_scalar_type(length))
    reached[0] = places[:-1]
    _reach(asked, size, shapes, out=reached[1:])
    found = np.flatnonzero((reached[1:] > reached[:-1]).T)
    starts = found // len(shapes.ms)  # numpy's divmod takes longer than both of these
    of_shape = found - starts * len(shapes.ms)
    ends = reached[1:][of_shape, starts]
    ms = shapes.ms.take(of_shape)
    shortest = starts.searchsorted(places[:-1])
    apart_ms = _before(ms[shortest])
    # No plan costs more than all items apart.
    may_be_best = _may_be_best(ms - apart_ms.take(ends), SAME * apart_ms[-1])
    may_be_best[shortest] = True
    kept = np.flatnonzero(may_be_best)
    starts, ends = starts.take(kept), ends.take(kept)
    rows_ms = eager_row_ms * _before(asked[0])
    return Runs(
        first=starts.searchsorted(places).tolist(),
        ends=ends.tolist(),
        shapes=of_shape.take(kept),
        over_ms=(ms.take(kept) + (rows_ms.take(starts) - rows_ms.take(ends))).tolist(),
        farthest=reached[-1].tolist(),
        rows_ms=rows_ms.tolist(),
    )


def _before(each: npt.NDArray[N]) -> npt.NDArray[N]:
    """(L + 1,): the sum of all before a place."""
    before = np.zeros(len(each) + 1, each.dtype)
    np.cumsum(each, out=before[1:])
    return before


def _limits(held: Ints) -> Limits:
    return Limits(*np.unique(held, return_inverse=True))


def _per_row(held: Ints) -> Ints:
    rows, *others = held[:4].tolist()
    least = [min(map(Fraction, other, rows), default=Fraction(0)) for other in others]
    parts = [[each.numerator for each in least], [each.denominator for each in least]]
    return np.array(parts, dtype=np.int64)[:, :, None]


def _slowest(holds: Bools) -> Ints:
    """(C, S), given (S, S), whether the one shape is within the other; see `Shapes`."""
    count = len(holds)
    chains: list[list[int]] = []
    for shape in range(count):
        chain = next((chain for chain in chains if holds[chain[-1], shape]), None)
        if chain is None:
            # Before it begins each shape stands for it, as good as none: it is no slower than itself.
            chain = list(range(shape))
            chains.append(chain)
        for each in chains:
            each.append(shape if each is chain else each[-1])
    return np.array(chains, dtype=np.int64).reshape(len(chains), count)


def _reach(asked: Ints, size: int, shapes: Shapes, out: Positions) -> None:
    """(S, L): the end of the longest run from each start that this or a faster shape holds.

    Runs stay within their order.
    """
    patch_rows, *others, longest = asked
    of_rows, *of_others = shapes.sums
    stops = np.arange(size, len(longest) + 1, size).repeat(size)
    held = _of_shapes(np.minimum(_ends(patch_rows, of_rows.values), stops), of_rows, out.dtype)
    for each, limits, is_bound in zip(others, of_others, _are_bound(asked, shapes), strict=True):
        if is_bound:
            ends = _of_shapes(_ends(each, limits.values), limits, out.dtype)
            np.minimum(held, ends, out=held)
    limits = shapes.tiers if (longest <= patch_rows).all() else shapes.longest
    if longest.max() > limits.values[0]:
        ends = _of_shapes(_ends_of_short(longest, limits.values), limits, out.dtype)
        np.minimum(held, ends, out=held)
    out[:] = held.take(shapes.slowest[0], axis=0)
    for chain in shapes.slowest[1:]:
        np.maximum(out, held.take(chain, axis=0), out=out)


def _are_bound(asked: Ints, shapes: Shapes) -> list[bool]:
    """Of the counters that add up, but for patch rows, whether items may reach a limit before that of rows.

    None may if no item asks for more a row than the shape that holds the least a row: so it is with output
    rows of a tower that merges so many patches, or with segments where small images are rare.
    """
    held, rows = shapes.per_row
    are_bound: list[bool] = (asked[1:4] * rows > asked[0] * held).any(axis=1).tolist()
    return are_bound


def _ends(asked: Ints, most: Ints) -> Ints:
    """(V, L): the end of the longest run from each start that asks for so much at most."""
    after = asked.cumsum()
    return after.searchsorted(after - asked + most[:, None], side="right")


def _ends_of_short(longest: Ints, most: Ints) -> Ints:
    """(V, L): the end of the longest run from each start whose segments are so long at most."""
    length = len(longest)
    too_long = np.where(longest > most[:, None], np.arange(length), length)
    return np.minimum.accumulate(too_long[:, ::-1], axis=1)[:, ::-1]


def _of_shapes(ends: Ints, limits: Limits, dtype: np.dtype[Any]) -> Positions:
    """(S, L), given (V, L): each shape's."""
    return ends.astype(dtype).take(limits.of_shape, axis=0)


def _may_be_best(rest_apart_ms: Floats, same_ms: np.float64) -> Bools:
    """(R,): all but the runs that cost more than the one before and, apart, the items that it leaves out.

    rest_apart_ms  (R,): a run and all items after it apart, but for what is the same for all runs of a start
    """
    may_be = np.ones(len(rest_apart_ms), dtype=np.bool_)
    np.less_equal(rest_apart_ms[1:], rest_apart_ms[:-1] + same_ms, out=may_be[1:])
    return may_be

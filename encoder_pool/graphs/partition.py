"""The cheapest cut of a line of items into packs, by dynamic programming over the runs that may be packs.

What a plan costs is told as what it costs more than the rows of all its items do where they run eagerly. That
is the same for all plans; and without it an eager pack costs the same however many items it has, so that the
cheapest rest after it is all that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from encoder_pool.graphs.runs import SAME, Runs


class Cut(NamedTuple):
    """A pack as a run on the line; `shape` None is eager."""

    start: int
    end: int
    shape: int | None


def cheapest_cuts(runs: Runs, size: int, eager_ms: float, all_rows_ms: float) -> Iterator[Cut]:
    """The packs of the order that is cut the cheapest; the first one wins a tie.

    size         items of an order; the line is all orders, one after the other
    eager_ms     an eager pack, but for its rows
    all_rows_ms  the rows of an order in eager packs
    """
    orders = [range(start, start + size) for start in range(0, len(runs.farthest), size)]
    rests = [_rest_ms(order, runs, eager_ms) for order in orders]
    least_ms = min(rest_ms[order.start] for order, rest_ms in zip(orders, rests, strict=True))
    same_ms = SAME * (least_ms + all_rows_ms)
    for order, rest_ms in zip(orders, rests, strict=True):
        if rest_ms[order.start] <= least_ms + same_ms:
            return _cuts(order, runs, rest_ms, eager_ms, same_ms)
    raise AssertionError("the least is none of them")


def _rest_ms(order: range, runs: Runs, eager_ms: float) -> list[float]:
    """By place on the line, the least that the items from there on cost: exact, from the last one back."""
    first, ends, run_ms = runs.first, runs.ends, runs.over_ms
    rest_ms = [0.0] * (order.stop + 1)
    least = 0.0
    for start in reversed(order):
        best = inf
        for run in range(first[start], first[start + 1]):
            total = run_ms[run] + rest_ms[ends[run]]
            if total < best:
                best = total
        if eager_ms + least < best:  # else no eager run is worth a look
            best = min(best, eager_ms + min(rest_ms[start + 1 : runs.farthest[start] + 1]))
        rest_ms[start] = best
        if best < least:
            least = best
    return rest_ms


def _cuts(
    order: range, runs: Runs, rest_ms: Sequence[float], eager_ms: float, same_ms: float
) -> Iterator[Cut]:
    start = order.start
    while start < order.stop:
        cut = _cut(start, runs, rest_ms, eager_ms, same_ms)
        yield cut
        start = cut.end


def _cut(start: int, runs: Runs, rest_ms: Sequence[float], eager_ms: float, same_ms: float) -> Cut:
    """The first pack of the cheapest rest.

    Of those that cost the same a replay, and the fullest: what comes after it is planned again, with more. Of
    eager ones the shortest.
    """
    most_ms = rest_ms[start] + same_ms
    for run in reversed(range(runs.first[start], runs.first[start + 1])):
        if runs.over_ms[run] + rest_ms[runs.ends[run]] <= most_ms:
            return Cut(start, runs.ends[run], int(runs.shapes[run]))
    ends = range(start + 1, runs.farthest[start] + 1)
    return Cut(start, next(end for end in ends if eager_ms + rest_ms[end] <= most_ms), None)

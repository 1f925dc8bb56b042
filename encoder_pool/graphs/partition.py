"""The cheapest cut of a line of items into packs, by dynamic programming over the runs that may be packs.

What a plan costs is told as what it costs more than the rows of all its items do where they run eagerly. That
is the same for all plans; and without it an eager pack costs the same however many items it has, so that the
cheapest rest after it is all that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from encoder_pool.graphs.runs import SAME, Runs


class Cut(NamedTuple):
    """A pack as a run on the line; `shape` None is eager."""

    start: int
    end: int
    shape: int | None


def cheapest_cuts(runs: Runs, size: int, eager_ms: float) -> Iterator[Cut]:
    """The packs of the order that is cut the cheapest; the first one wins a tie.

    size      items of an order; the line is all orders, one after the other
    eager_ms  an eager pack, but for its rows
    """
    orders = [range(start, start + size) for start in range(0, len(runs.farthest), size)]
    rests = [_rest(order, runs, eager_ms) for order in orders]
    least = min(rests, key=lambda rest: rest.ms[rest.order.start])
    most_ms = least.most_ms(least.order.start, runs)
    cheapest = next(rest for rest in rests if rest.ms[rest.order.start] <= most_ms)
    return _cuts(cheapest, runs)


class _Rest(NamedTuple):
    """The cheapest packs from a place of an order on.

    ms          what they cost, by place on the line
    eager_ends  where the first of them ends, by those places where it is eager
    """

    order: range
    ms: list[float]
    eager_ends: dict[int, int]

    def most_ms(self, start: int, runs: Runs) -> float:
        """What packs from there on may cost to count as the cheapest."""
        rows_ms = runs.rows_ms[self.order.stop] - runs.rows_ms[start]
        return self.ms[start] + SAME * (self.ms[start] + rows_ms)


def _rest(order: range, runs: Runs, eager_ms: float) -> _Rest:
    """Exact, from the last item backwards."""
    first, ends, run_ms = runs.first, runs.ends, runs.over_ms
    rest_ms = [0.0] * (order.stop + 1)
    eager_ends: dict[int, int] = {}
    least = 0.0
    for start in reversed(order):
        best = inf
        for run in range(first[start], first[start + 1]):
            total = run_ms[run] + rest_ms[ends[run]]
            if total < best:
                best = total
        if eager_ms + least < best:  # else no eager run is worth a look
            rests = rest_ms[start + 1 : runs.farthest[start] + 1]
            if eager_ms + min(rests) < best:
                best = eager_ms + min(rests)
                eager_ends[start] = start + 1 + rests.index(min(rests))
        rest_ms[start] = best
        if best < least:
            least = best
    return _Rest(order, rest_ms, eager_ends)


def _cuts(rest: _Rest, runs: Runs) -> Iterator[Cut]:
    start = rest.order.start
    while start < rest.order.stop:
        cut = _first_cut(start, rest, runs)
        yield cut
        start = cut.end


def _first_cut(start: int, rest: _Rest, runs: Runs) -> Cut:
    """The first of the cheapest packs from there on.

    Of replays that cost the same the fullest: what comes after it is planned again, with more.
    """
    if start in rest.eager_ends:
        return Cut(start, rest.eager_ends[start], None)
    most_ms = rest.most_ms(start, runs)
    candidates = reversed(range(runs.first[start], runs.first[start + 1]))
    run = next(run for run in candidates if runs.over_ms[run] + rest.ms[runs.ends[run]] <= most_ms)
    return Cut(start, runs.ends[run], int(runs.shapes[run]))

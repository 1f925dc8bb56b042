"""The packing policy to beat: ascending next-fit into the largest rung, then the smallest cover."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_pool.core import Cost, Pack, Rung


def next_fit(costs: Sequence[Cost], ladder: Sequence[Rung]) -> list[Pack]:
    packs: list[Pack] = []
    members: list[int] = []
    for item in sorted(range(len(costs)), key=lambda item: costs[item].patch_rows):
        together = Cost.total(costs[member] for member in (*members, item))
        if members and not any(together.fits(rung.capacity) for rung in ladder):
            packs.append(_cover(members, costs, ladder))
            members = []
        members.append(item)
    if members:
        packs.append(_cover(members, costs, ladder))
    return packs


def _cover(members: list[int], costs: Sequence[Cost], ladder: Sequence[Rung]) -> Pack:
    total = Cost.total(costs[member] for member in members)
    fitting = (position for position, rung in enumerate(ladder) if total.fits(rung.capacity))
    return Pack(tuple(members), next(fitting, None))

"""What a cost table says of a plan: the number that a planner is to make small."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_pool.core import Cost, Pack
from encoder_pool.graphs.plan import CostTable


def predicted_ms(packs: Sequence[Pack], costs: Sequence[Cost], table: CostTable) -> float:
    return sum(_pack_ms(pack, costs, table) for pack in packs)


def _pack_ms(pack: Pack, costs: Sequence[Cost], table: CostTable) -> float:
    if pack.rung is not None:
        return table.pack_ms + table.rung_ms[pack.rung]
    patch_rows = sum(costs[member].patch_rows for member in pack.members)
    return table.pack_ms + table.eager_fixed_ms + table.eager_row_ms * patch_rows

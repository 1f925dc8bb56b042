"""All of the graph side in one call: plan the items, run the packs, hand every item its rows.

For callers in the tower's own process, such as a benchmark or a notebook. The service plans in the replica
and runs in the shard instead, one pack at a time. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from encoder_pool.core import Cost
from encoder_pool.graphs.plan import Planner
from encoder_pool.graphs.runner import Batch, Runner
from encoder_pool.towers.adapter import StagedItem, Tower


def encode(
    items: Sequence[StagedItem], costs: Sequence[Cost], tower: Tower, runner: Runner, planner: Planner
) -> tuple[torch.Tensor, ...]:
    """The rows of every item, (cost.out_rows, H), in the caller's order, each in storage of its own.

    The planner is one of the runner's ladder.
    """
    rows_of_item: dict[int, torch.Tensor] = {}
    for pack in planner.plan(costs):
        pack_costs = [costs[member] for member in pack.members]
        batch = Batch.of(tower, [items[member] for member in pack.members], pack_costs)
        rows = runner.run(batch, pack.rung)
        parts = torch.split(rows, [cost.out_rows for cost in pack_costs])
        rows_of_item |= zip(pack.members, (part.clone() for part in parts), strict=True)
    return tuple(rows_of_item[item] for item in range(len(items)))

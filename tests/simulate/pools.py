"""Small pools to simulate, whose times can be worked out by hand: a GPU and nothing else takes time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.plan import CostTable
from encoder_pool.pool.sizing import Sizing
from encoder_pool.simulate.costs import Costs, Hardware
from encoder_pool.simulate.replica import Blueprint
from encoder_pool.simulate.shard import Tower
from encoder_pool.simulate.simulation import Scenario
from encoder_pool.simulate.traffic import Traffic
from encoder_pool.towers.adapter import Foreseen

NOTHING = 1e12
"""A rate at which nothing takes time."""
FREE = Costs(
    request_ms=0,
    reply_ms_per_mb=0,
    prepare_ms=0,
    prepare_ms_per_megapixel=0,
    copy_gb_s=NOTHING,
    hand_over_ms=0,
    launch_ms=0,
    pcie_gb_s=NOTHING,
    hop_ms=0,
)
ENDLESS = Hardware(nic_gbit_s=NOTHING, proxy_gb_s=NOTHING)


class Wide:
    """An image of w pixels across is w rows."""

    def foresee_image(self, width: int, height: int) -> Foreseen:
        return Foreseen(Cost(width, width, width), width)


def ladder(*budgets: int) -> tuple[Rung, ...]:
    return tuple(Rung(budget, Cost(budget, budget, budget)) for budget in budgets)


def table(rung_ms: Sequence[float], pack_ms: float = 1e-6) -> CostTable:
    """Eager is the last resort."""
    return CostTable(tuple(rung_ms), 10 * max(rung_ms), 1.0, pack_ms)


def blueprint(budgets_ms: dict[int, float], costs: Costs = FREE, **sections: Any) -> Blueprint:
    """Rungs of these budgets, which take so many milliseconds."""
    document = {
        "model": {"name": "simulated", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"},
        "ladder": {"budgets": list(budgets_ms)},
        "queue": {"packs_in_flight": 1},
        **sections,
    }
    config, rungs = PoolConfig.model_validate(document), ladder(*budgets_ms)
    sizing = Sizing(rungs, rungs[-1].capacity, config.queue.packs_in_flight, 0, 0)
    return Blueprint(config, sizing, Tower(rungs, table(list(budgets_ms.values())), 1.0, 1), costs)


def scenario(plan: Blueprint, traffic: Traffic, gpus: int = 1, **others: Any) -> Scenario:
    return Scenario(plan, Wide(), others.pop("hardware", ENDLESS), traffic, gpus, **others)


def trace(path: Path, *rows: tuple[float, int], seconds: float) -> Traffic:
    """Images of some width at some seconds; what comes after a sixth of the seconds is counted."""
    lines = [f"{at},{width},1" for at, width in rows]
    path.write_text("\n".join(["seconds,width,height", *lines]) + "\n")
    return Traffic(arrivals="trace", trace=path, seconds=seconds)

"""Configuration files of a service of toys, right ones and wrong ones, and what a start of them measured."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from encoder_pool.config import PoolConfig
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.plan import CostTable
from encoder_pool.pool.measured import Card, Measured, Subject, save
from encoder_pool.pool.sizing import size_pool
from tests.toy import ToyAdapter

BUILDER = "encoder_pool.builder:build_app"
ADAPTER = "tests.toy:ToyAdapter"


def toy_args(folder: Path, **sections: Any) -> dict[str, Any]:
    """The `args` of an application whose checkpoint is in the folder."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "config.json").write_text("{}")
    model = {"name": "toy", "adapter": ADAPTER, "checkpoint": str(checkpoint), **sections.pop("model", {})}
    return {"model": model, "ladder": {"min": 1, "max": 4}, **sections}


def toy_entry(folder: Path, name: str = "toys", **sections: Any) -> dict[str, Any]:
    """An entry of `applications`."""
    args = toy_args(folder, **sections)
    return {"name": name, "route_prefix": f"/{name}", "import_path": BUILDER, "args": args}


def toy_document(folder: Path, *entries: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A whole file: these entries or one of toys, and these `http_options`."""
    applications = list(entries) or [toy_entry(folder)]
    return {"http_options": {"host": "127.0.0.1", **options}, "applications": applications}


def write(folder: Path, document: Any) -> Path:
    path = folder / "service.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def keep(config: PoolConfig, captured: int) -> Measured:
    """As a start of toys that captured so many rungs would: each takes its budget in milliseconds."""
    checkpoint = Path(config.model.checkpoint)
    rungs = size_pool(config, ToyAdapter(checkpoint)).ladder
    measured = Measured(
        subject=Subject.of(config, checkpoint, rungs),
        card=Card(name="a card", driver=""),
        at=datetime(2026, 12, 1, 12, tzinfo=UTC),
        ladder=rungs[:captured],
        table=CostTable(tuple(float(rung.budget) for rung in rungs[:captured]), 100.0, 1.0),
        choices=(),
        not_captured=tuple(NotCaptured(rung, "out of memory") for rung in rungs[captured:]),
        memory_bound_at=None,
    )
    save(measured)
    return measured

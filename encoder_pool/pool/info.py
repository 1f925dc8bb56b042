"""What `/info` shows of a pool: proof of what is configured, captured, and happening."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from encoder_pool.pool.messages import ShardMemory

if TYPE_CHECKING:
    from encoder_pool.pool.pool import Pool

PACKAGES = ("encoder-pool", "ray", "torch", "transformers")


def describe(pool: Pool) -> dict[str, Any]:
    """The whole document; values are JSON."""
    return {
        "model": _model(pool),
        "ladder": _ladder(pool),
        "limits": pool.config.limits.model_dump(mode="json"),
        "workers": _workers(pool),
        "held": _held(pool),
        "cache": {**pool.cache.describe(), "joined": pool.flights.joined},
        "counters": _counters(pool),
        "config": pool.config.model_dump(mode="json"),
        "versions": {package: version(package) for package in PACKAGES},
    }


def _model(pool: Pool) -> dict[str, Any]:
    model, adapter = pool.config.model, pool.adapter
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "modalities": sorted(adapter.modalities),
        "width": adapter.width,
        "dtype": model.dtype.value,
        "prefix_tokens": adapter.prefix,
        "parts": [part._asdict() for part in adapter.parts],
        "device": model.device,
    }


def _ladder(pool: Pool) -> dict[str, Any]:
    report = pool.worker.report
    rungs = [
        {"budget": rung.budget, "ms": round(ms, 3), "capacity": asdict(rung.capacity)}
        for rung, ms in zip(report.ladder, report.table.rung_ms, strict=True)
    ]
    return {
        "unit": pool.adapter.unit,
        "rungs": rungs,
        "eager": {"fixed_ms": report.table.eager_fixed_ms, "row_ms": report.table.eager_row_ms},
        "pack_ms": report.table.pack_ms,
        "largest_item": asdict(pool.sizing.largest_item),
        "dropped_budgets": [rung.budget for rung in pool.sizing.ladder if rung not in report.ladder],
    }


def _workers(pool: Pool) -> list[dict[str, Any]]:
    worker = pool.worker
    return [
        {
            "state": worker.state,
            "pid": worker.report.pid,
            "restarts": worker.restarts,
            "ring": {"slots": pool.sizing.slots, "bytes": pool.sizing.ring_bytes},
            "kernels": dict(worker.report.kernels),
            **memory_entries(worker.report.memory),
        }
    ]


def memory_entries(memory: ShardMemory) -> dict[str, Any]:
    """What the shard takes of the host and, where it has one, of the GPU, which is named then."""
    values = asdict(memory)
    gpu = values.pop("gpu")
    return values | (gpu or {})


def _held(pool: Pool) -> dict[str, int]:
    admission = pool.admission
    return {
        "requests": admission.requests,
        "tokens": admission.tokens,
        "bytes": admission.bytes,
        "queued_items": len(pool.batcher),
    }


def _counters(pool: Pool) -> dict[str, Any]:
    """The pool's counters since the replica started, and the shard's since the shard did."""
    reply = pool.dispatcher.last_reply
    return {
        **pool.counters.snapshot(),
        "requests": pool.admission.admitted_requests,
        "requests_shed": pool.admission.shed_requests,
        "shard": asdict(reply.counters) if reply is not None else None,
    }

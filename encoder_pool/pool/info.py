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
        "delivery": pool.leases.describe(),
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
        "largest_item": asdict(pool.sizing.largest_item),
        "not_captured": [
            {"budget": lost.rung.budget, "longest": lost.rung.capacity.longest, "why": lost.why}
            for lost in report.not_captured
        ],
        "measured_at": report.measured_at,
    }


def _workers(pool: Pool) -> list[dict[str, Any]]:
    worker = pool.worker
    return [
        {
            "state": worker.state,
            "pid": worker.report.pid,
            "restarts": worker.restarts,
            "ring": {"slots": pool.sizing.slots, "bytes": pool.sizing.ring_bytes},
            "start_s": {phase: round(seconds, 3) for phase, seconds in worker.report.start_s.items()},
            "kernels": dict(worker.report.kernels),
            **memory_entries(worker.report.memory),
            **_ranks(pool),
        }
    ]


def _ranks(pool: Pool) -> dict[str, Any]:
    """What each rank takes, where there are several, and how many packs they have agreed on."""
    report, reply = pool.worker.report, pool.dispatcher.last_reply
    if not report.others:
        return {}
    ranks = [
        {"pid": each.pid, **asdict(each.joined), **memory_entries(each.memory)}
        for each in (report, *report.others)
        if each.joined is not None
    ]
    return {"ranks": ranks, "packs_agreed": reply.agreed if reply is not None else 0}


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

"""What `/info` shows of a pool: proof of what is configured, captured, and happening."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from encoder_pool.pool.counters import with_ratios
from encoder_pool.pool.ledger import Row, View
from encoder_pool.pool.messages import ShardMemory

if TYPE_CHECKING:
    from encoder_pool.pool.dispatch import Dispatcher
    from encoder_pool.pool.pool import Pool

PACKAGES = ("encoder-pool", "ray", "torch", "transformers")


def describe(pool: Pool) -> dict[str, Any]:
    """The whole document; values are JSON. All but `pool` is of the replica that answers."""
    return {
        "replica": pool.reporter.place._asdict(),
        "model": _model(pool),
        "ladder": _ladder(pool),
        "limits": pool.config.limits.model_dump(mode="json"),
        "workers": [_worker(pool, dispatcher) for dispatcher in pool.workers.dispatchers],
        "preparers": pool.preparers.describe(),
        "held": held(pool),
        "delivery": pool.leases.describe(),
        "cache": {**pool.cache.describe(), "joined": pool.flights.joined},
        "counters": _counters(pool),
        "pool": _pool(pool.reporter.view()),
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
    report = pool.workers.report
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
        "not_captured": [
            {"budget": lost.rung.budget, "longest": lost.rung.capacity.longest, "why": lost.why}
            for lost in report.not_captured
        ],
        "measured_at": report.measured_at,
    }


def _worker(pool: Pool, dispatcher: Dispatcher) -> dict[str, Any]:
    """One worker: its shard now, and what its shards have run since the replica started."""
    worker, report, ran = dispatcher.worker, dispatcher.worker.report, dispatcher.runs.total.total
    return {
        "state": worker.state,
        "pid": report.pid,
        "restarts": worker.restarts,
        "packs": ran.runs,
        "items": ran.items,
        "tokens_per_s": round(dispatcher.rate.tokens_per_s, 3),
        "largest_budget": report.ladder[-1].budget,
        "measured_at": report.measured_at,
        "ring": {"slots": pool.sizing.slots, "bytes": pool.sizing.ring_bytes},
        "start_s": {phase: round(seconds, 3) for phase, seconds in report.start_s.items()},
        "kernels": dict(report.kernels),
        **memory_entries(report.memory),
        **_ranks(dispatcher),
    }


def _ranks(dispatcher: Dispatcher) -> dict[str, Any]:
    """What each rank takes, where there are several, and how many packs they have agreed on."""
    report = dispatcher.worker.report
    if not report.others:
        return {}
    ranks = [
        {"pid": each.pid, **asdict(each.joined), **memory_entries(each.memory)}
        for each in (report, *report.others)
        if each.joined is not None
    ]
    return {"ranks": ranks, "packs_agreed": dispatcher.packs_agreed}


def memory_entries(memory: ShardMemory) -> dict[str, Any]:
    """What the shard takes of the host and, where it has one, of the GPU, which is named then."""
    values = asdict(memory)
    gpu = values.pop("gpu")
    return values | (gpu or {})


def held(pool: Pool) -> dict[str, int]:
    """What the replica holds now."""
    admission = pool.admission
    return {
        "requests": admission.requests,
        "tokens": admission.tokens,
        "bytes": admission.bytes,
        "queued_items": len(pool.batcher),
    }


def totals(pool: Pool) -> dict[str, int]:
    """The replica's counters since it started."""
    return {
        **pool.counters.totals(),
        "requests": pool.admission.admitted_requests,
        "requests_shed": pool.admission.shed_requests,
    }


def _counters(pool: Pool) -> dict[str, Any]:
    """The pool's counters since the replica started, and the shards' since each of them did."""
    last = pool.workers.shards_ran
    return {**with_ratios(totals(pool)), "shard": asdict(last) if last is not None else None}


def _pool(view: View | None) -> dict[str, Any] | None:
    """All replicas, as of at most a second ago; None until the ledger has answered for the first time."""
    if view is None:
        return None
    live = [row.report for row in view.rows if not row.is_stale]
    return {
        "replicas": [_replica(row) for row in view.rows],
        "replicas_gone": view.gone.replicas,
        "held": {name: sum(report.held[name] for report in live) for name in live[0].held} if live else {},
        "tokens_per_s": round(sum(report.tokens_per_s for report in live), 3),
        "counters": with_ratios(view.totals.counters),
    }


def _replica(row: Row) -> dict[str, Any]:
    report = row.report
    return {
        "replica": report.replica,
        "node_id": report.node_id,
        "host": report.host,
        "age_s": round(row.age_s, 3),
        "is_stale": row.is_stale,
        "state": report.state,
        "held": dict(report.held),
        "tokens_per_s": round(report.tokens_per_s, 3),
        "counters": with_ratios(report.totals.counters),
    }

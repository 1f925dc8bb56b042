"""The metrics of a pool: what its own counters say, for the ledger, and all replicas' as one text.

A scrape goes to whatever replica the proxy chooses, so every replica answers for the whole pool: counters and
histograms are sums over all replicas that ever were, gauges over those that report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from encoder_pool.metrics.families import Family, exposition, families_of
from encoder_pool.pool.ledger import View

if TYPE_CHECKING:
    from encoder_pool.pool.pool import Pool


def replica_families(pool: Pool) -> tuple[Family, ...]:
    """Everything that this replica measures."""
    return families_of(chain(pool.meter.registry.collect(), _counters(pool), _gauges(pool)))


def pool_metrics(view: View, model: str) -> bytes:
    """The pool's metrics in Prometheus' text format, labelled with the model's name."""
    families = (*view.totals.families, *view.gauges, *families_of(_replicas(view)))
    return exposition(families, model=model)


def _counter(name: str, meaning: str, values: Iterable[tuple[str, float]], label: str) -> Metric:
    family = CounterMetricFamily(f"encoder_pool_{name}", meaning, labels=[label])
    for value, count in values:
        family.add_metric([value], count)
    return family


def _counters(pool: Pool) -> Iterator[Metric]:
    counters, runs = pool.counters, pool.workers.ran
    items = CounterMetricFamily(
        "encoder_pool_items",
        "Items of admitted requests by the way they ended.",
        labels=["modality", "outcome"],
    )
    for (modality, ending), count in sorted(counters.endings.items()):
        items.add_metric([modality.value, ending.value], count)
    yield items
    tokens = ((modality.value, count) for modality, count in sorted(counters.tokens.items()))
    yield _counter("tokens", "Rows of embeddings encoded.", tokens, "modality")
    replays = ((str(budget), tally.runs) for budget, tally in sorted(runs.replays.items()))
    yield _counter("graph_replays", "Packs that ran on a rung, by its budget.", replays, "bucket")
    eager = ((reason.value, tally.runs) for reason, tally in sorted(runs.eager.items()))
    yield _counter("eager_batches", "Packs that ran without a rung, and why.", eager, "reason")
    yield CounterMetricFamily(
        "encoder_pool_padding_tokens",
        "Tokens that rungs had room for and no item filled.",
        counters.padding_tokens,
    )
    yield CounterMetricFamily(
        "encoder_pool_worker_restarts", "Shards started in another's place.", pool.workers.restarts
    )


def _gauges(pool: Pool) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "encoder_pool_queue_items", "Items, or pieces, that wait for a worker.", len(pool.batcher)
    )
    yield GaugeMetricFamily(
        "encoder_pool_queue_tokens", "Tokens admitted and not yet answered.", pool.admission.tokens
    )
    yield GaugeMetricFamily(
        "encoder_pool_tokens_per_second",
        "Measured rate of the workers while busy.",
        pool.workers.tokens_per_s,
    )
    yield GaugeMetricFamily(
        "encoder_pool_workers_ready", "Workers that can take a pack.", pool.readiness.workers_ready
    )
    yield GaugeMetricFamily(
        "encoder_pool_inflight_batches", "Packs at a worker.", pool.workers.packs_in_flight
    )
    reports = [dispatcher.worker.report for dispatcher in pool.workers.dispatchers]
    gpus = [gpu for report in reports if (gpu := report.memory.gpu) is not None]
    if gpus:
        memory = GaugeMetricFamily(
            "encoder_pool_gpu_memory_bytes",
            "Memory of the workers' GPUs as of capture, by what has it; one that they share counts for each.",
            labels=["kind"],
        )
        for kind in ("allocated", "pool", "free", "total"):
            memory.add_metric([kind], sum(getattr(gpu, f"{kind}_bytes") for gpu in gpus))
        yield memory


def _replicas(view: View) -> Iterator[Metric]:
    replicas = GaugeMetricFamily(
        "encoder_pool_replicas", "Replicas that report, and that have stopped to.", labels=["state"]
    )
    stale = sum(row.is_stale for row in view.rows)
    replicas.add_metric(["live"], len(view.rows) - stale)
    replicas.add_metric(["stale"], stale)
    yield replicas
    age = GaugeMetricFamily(
        "encoder_pool_replica_report_age_seconds", "Since the replica's last report.", labels=["replica"]
    )
    for row in view.rows:
        age.add_metric([row.report.replica], row.age_s)
    yield age

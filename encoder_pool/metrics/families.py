"""Metrics as plain values: they travel between processes, are added up over replicas, and written as text.

A counter or a histogram of several replicas is the sum of theirs, and so is a gauge here: what is held, what
is ready. Reading and writing Prometheus' formats is left to its own library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from prometheus_client import Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Series(NamedTuple):
    """The name of a sample, suffix included, and its labels."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its samples. `kind` is Prometheus' type of it."""

    name: str
    help: str
    kind: str
    samples: Mapping[Series, float]

    @property
    def only_grows(self) -> bool:
        """Whether what it counted still counts when the process is gone."""
        return self.kind in ("counter", "histogram")


def families_of(metrics: Iterable[Metric]) -> tuple[Family, ...]:
    """The metrics as values. When a series began is left out: over replicas it has no sum."""
    return tuple(
        Family(metric.name, metric.documentation, metric.type, dict(_samples(metric))) for metric in metrics
    )


def _samples(metric: Metric) -> Iterator[tuple[Series, float]]:
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            yield Series(sample.name, tuple(sample.labels.items())), sample.value


def added(families: Iterable[Family]) -> tuple[Family, ...]:
    """One family a name, with the sums of the samples that have the same name and labels."""
    sums: dict[str, Family] = {}
    for family in families:
        known = sums.get(family.name)
        if known is None:
            sums[family.name] = family
            continue
        samples = dict(known.samples)
        for series, value in family.samples.items():
            samples[series] = samples.get(series, 0.0) + value
        sums[family.name] = replace(known, samples=samples)
    return tuple(sums.values())


def exposition(families: Iterable[Family], **labels: str) -> bytes:
    """The families as Prometheus reads them, every sample with these labels too."""
    return generate_latest(_Collected([_metric(family, labels) for family in families]))


class _Collected:
    """What the library writes: anything that can be collected."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _metric(family: Family, labels: Mapping[str, str]) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    for series, value in family.samples.items():
        metric.add_sample(series.name, {**labels, **dict(series.labels)}, value)
    return metric

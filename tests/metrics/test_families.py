from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from encoder_pool.metrics.families import Family, Series, added, exposition, families_of
from encoder_pool.metrics.meter import Meter


def measured(encodes: int, items: int) -> tuple[Family, ...]:
    meter = Meter()
    for _ in range(encodes):
        meter.requests.labels("/v1/encode", "200").inc()
        meter.request_seconds.labels("/v1/encode").observe(0.3)
    meter.batch_items.observe(items)
    return families_of(meter.registry.collect())


def values(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a Prometheus reads, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_families_of_several_replicas_add_up_sample_by_sample() -> None:
    read = values(exposition(added([*measured(2, 3), *measured(5, 30)]), model="m"))
    route = ("route", "/v1/encode")
    assert read["encoder_pool_requests_total", frozenset({route, ("status", "200"), ("model", "m")})] == 7
    seconds = "encoder_pool_request_seconds"
    assert read[f"{seconds}_count", frozenset({route, ("model", "m")})] == 7
    assert read[f"{seconds}_bucket", frozenset({route, ("le", "0.25"), ("model", "m")})] == 0
    assert read[f"{seconds}_bucket", frozenset({route, ("le", "0.5"), ("model", "m")})] == 7
    items = {
        le: read["encoder_pool_batch_items_bucket", frozenset({("le", le), ("model", "m")})]
        for le in ("4.0", "32.0", "+Inf")
    }
    assert items == {"4.0": 1, "32.0": 2, "+Inf": 2}


def test_a_series_that_only_one_replica_has_is_kept() -> None:
    one, other = ({Series("x_total", (("code", code),)): 2.0} for code in ("a", "b"))
    (family,) = added([Family("x", "", "counter", one), Family("x", "", "counter", other)])
    assert family.samples == {**one, **other}


def test_what_is_of_now_does_not_only_grow() -> None:
    kinds = {"counter": True, "histogram": True, "gauge": False}
    assert {kind: Family("x", "", kind, {}).only_grows for kind in kinds} == kinds
    assert all(family.only_grows for family in families_of(Meter().registry.collect()))


def test_nothing_is_said_of_when_a_series_began() -> None:
    assert b"_created" not in exposition(measured(1, 1))

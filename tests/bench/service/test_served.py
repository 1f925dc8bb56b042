"""What of a file is served, and what is read of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from encoder_pool.bench.service.counted import Counted
from encoder_pool.bench.service.load import Target
from encoder_pool.bench.service.served import as_measured, only, target_of
from encoder_pool.launch.file import read_service_file
from tests.launch.toy_service import toy_document, toy_entry, write

DEMO = read_service_file(Path(__file__).parents[3] / "serve_configs" / "demo.yaml")


def test_one_application_is_served_without_cache_and_autoscaling_and_is_the_files_own_in_all_else(
    tmp_path: Path,
) -> None:
    scaling = {"min_replicas": 2, "max_replicas": 5, "target_drain_s": 3.0}
    queue = {"max_tokens": 1234}
    given = tmp_path / "given"
    given.mkdir()
    entries = [
        toy_entry(tmp_path, "first"),
        toy_entry(tmp_path, "second", scaling=scaling, queue=queue, cache={"max_bytes": 5}),
    ]
    service = read_service_file(write(given, toy_document(tmp_path, *entries, host="0.0.0.0", port=8000)))
    measured = as_measured(service, "second", 1234, tmp_path)
    config = only(measured).config
    assert config.cache.max_bytes == 0
    assert (config.scaling.min_replicas, config.scaling.max_replicas) == (2, 2)
    kept = {"cache", "scaling", "delivery"}
    theirs = service.applications[1].config.model_dump(exclude=kept)
    assert config.model_dump(exclude=kept) == theirs
    assert config.scaling.target_drain_s == 3.0
    assert config.delivery.max_bytes > 1 << 30
    assert target_of(measured) == Target("127.0.0.1", 1234, "/second", "toy")
    assert only(as_measured(service, None, 1234, tmp_path)).name == "first"


@pytest.mark.parametrize(("least", "measured"), [(0, 1), (1, 1), (3, 3)])
def test_as_many_replicas_are_measured_as_the_file_has_at_least(
    tmp_path: Path, least: int, measured: int
) -> None:
    document = yaml.safe_load(DEMO.path.read_text())
    document["applications"][0]["args"]["scaling"] = {"min_replicas": least, "max_replicas": 4}
    path = tmp_path / "scaled.yaml"
    path.write_text(yaml.safe_dump(document))
    scaling = only(as_measured(read_service_file(path), None, 1234, tmp_path)).config.scaling
    assert (scaling.min_replicas, scaling.max_replicas) == (measured, measured)


def test_an_application_that_is_not_there_or_takes_no_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no application 'video'; it has image, audio"):
        as_measured(DEMO, "video", 1, tmp_path)
    with pytest.raises(ValueError, match=r"application 'audio' of .*demo\.yaml takes no images"):
        as_measured(DEMO, "audio", 1, tmp_path)


def info(packs: int, others: int = 0) -> dict[str, object]:
    """Of a replica that has encoded so many packs, beside another that has encoded others."""

    def counters(count: int) -> dict[str, int]:
        each = {"packs": 1, "items_packed": 3, "tokens": 30, "items_cached": 0, "padding_tokens": 10}
        return {name: value * count for name, value in each.items()}

    return {
        "counters": counters(packs),
        "pool": {"replicas": [{}, {}] if others else [{}], "counters": counters(packs + others)}
        if packs
        else None,
    }


def test_counters_are_what_came_between_two_looks() -> None:
    before, between, after = (Counted.of(info(packs)) for packs in (0, 2, 5))
    assert between.since(before) == between
    came = after.since(between)
    assert (came.packs, came.items, came.padding_tokens) == (3, 9, 30)
    assert (came.mean_batch, came.padding, came.tokens_an_item) == pytest.approx((3.0, 0.25, 10.0))
    assert (before.mean_batch, before.padding, before.tokens_an_item) == (0, 0, 0)


def test_several_replicas_are_counted_together() -> None:
    assert Counted.of(info(2, others=3)) == Counted.of(info(5))

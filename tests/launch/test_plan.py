from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.plan import proportional
from encoder_pool.launch.errors import ConfigError
from encoder_pool.launch.file import read_service_file
from encoder_pool.launch.plan import (
    QUEUE_DEPTHS,
    PoolPlan,
    expected_padding,
    mixed_queues,
    plan_pool,
    plan_service,
)
from encoder_pool.pool.sizing import size_pool
from encoder_pool.weights import ensure
from tests.launch.toy_service import keep, toy_args, toy_document, toy_entry, write
from tests.toy import TOKENS, WIDTH, ToyAdapter

TINY_WEIGHTS = 1_335_328


def planned(folder: Path, **sections: Any) -> PoolPlan:
    return plan_pool(PoolConfig.model_validate(toy_args(folder, **sections)))


def ladder_of(*budgets: int) -> tuple[Rung, ...]:
    return tuple(Rung(budget, Cost(budget, budget, budget)) for budget in budgets)


def padding_of(queues: list[list[Cost]], *budgets: int) -> float:
    ladder = ladder_of(*budgets)
    return expected_padding(queues, ladder, proportional(ladder))


def test_a_plan_is_sized_as_the_service_will_be(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.sizing == size_pool(plan.config, ToyAdapter(tmp_path))
    assert plan.unit == "items"


def test_weights_are_all_safetensors_of_the_checkpoint(tmp_path: Path) -> None:
    planned(tmp_path)
    (tmp_path / "checkpoint" / "model-1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "checkpoint" / "model-2.safetensors").write_bytes(bytes(24))
    (tmp_path / "checkpoint" / "other.bin").write_bytes(bytes(1000))
    assert planned(tmp_path).weight_bytes == 1024


def test_weights_of_a_grid_tower_are_counted_without_reading_them(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    assert planned(tmp_path, model=model).weight_bytes == 4 * TINY_WEIGHTS
    assert planned(tmp_path, model={**model, "dtype": "bfloat16"}).weight_bytes == 2 * TINY_WEIGHTS


def test_weights_that_are_in_no_file_are_not_made_up(tmp_path: Path) -> None:
    assert planned(tmp_path).weight_bytes is None


def test_weights_that_are_made_on_the_gpu_take_no_host_memory(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    cpu, gpu = (planned(tmp_path, model={**model, "device": device}) for device in ("cpu", "cuda"))
    cache = cpu.config.cache.max_bytes
    assert cpu.host_bytes == cpu.sizing.ring_bytes + cache + 4 * TINY_WEIGHTS
    assert gpu.host_bytes == gpu.sizing.ring_bytes + cache


def test_every_rank_reads_all_weights(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    one, two = (planned(tmp_path, model={**model, "tensor_parallel_size": size}) for size in (1, 2))
    assert two.host_bytes == one.host_bytes + 4 * TINY_WEIGHTS


def test_static_bytes_are_inputs_and_rows_of_the_largest_rung(tmp_path: Path) -> None:
    plan = planned(tmp_path, ladder={"min": 1, "max": 4, "eager_max": 9})
    assert plan.static_bytes == 4 * 2 + 4 * TOKENS * WIDTH * 4


def test_cpus_and_memory_are_those_of_all_first_replicas(tmp_path: Path) -> None:
    scaling = {"min_replicas": 2, "max_replicas": 4}
    cache = {"max_bytes": 500}
    plan = planned(tmp_path, scaling=scaling, cache=cache, replica={"cpus": 0.5}, shard={"cpus": 2})
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(bytes(1000))
    heavier = planned(tmp_path, scaling=scaling, cache=cache)
    assert plan.num_replicas == 2
    assert plan.cpus == 5.0
    assert plan.host_bytes == 2 * (plan.sizing.ring_bytes + 500)
    assert heavier.host_bytes == 2 * (heavier.sizing.ring_bytes + 500 + 1000)


def test_gpus_are_those_of_all_first_replicas(tmp_path: Path) -> None:
    scaling = {"min_replicas": 3, "max_replicas": 4}
    assert planned(tmp_path, scaling=scaling).gpus == 0
    cuda = {"device": "cuda"}
    assert planned(tmp_path, scaling=scaling, model=cuda).gpus == 3
    assert planned(tmp_path, scaling=scaling, model=cuda, shard={"gpus": 0.5}).gpus == 1.5


@pytest.mark.parametrize(
    ("budgets", "depth", "share"),
    [
        ((4,), 1, 3 / 4),
        ((4,), 3, 1 / 4),
        ((4,), 4, 0.0),
        ((4,), 5, 3 / 8),
        ((1, 2, 4), 3, 0.0),
        ((2, 4), 7, 1 / 8),
    ],
)
def test_padding_is_the_share_of_rows_that_belong_to_nobody(
    budgets: tuple[int, ...], depth: int, share: float
) -> None:
    assert padding_of([[Cost(1, 1, 1)] * depth], *budgets) == pytest.approx(share)


def test_an_item_beyond_the_ladder_is_run_at_its_own_shape_without_padding() -> None:
    assert padding_of([[Cost(6, 6, 6)] * 3], 4) == 0.0


def test_padding_is_that_of_all_queues_together() -> None:
    one, three = Cost(1, 1, 1), Cost(3, 3, 3)
    assert padding_of([[one], [three]], 4) == pytest.approx(1 / 2)


def test_queues_are_of_all_sizes_that_the_adapter_has_and_always_the_same(tmp_path: Path) -> None:
    ladder = planned(tmp_path, ladder={"min": 1, "max": 4}).sizing.ladder
    queues = mixed_queues(ToyAdapter(tmp_path), ladder, 8)
    assert queues == mixed_queues(ToyAdapter(tmp_path), ladder, 8)
    assert {len(queue) for queue in queues} == {8}
    assert {cost.patch_rows for queue in queues for cost in queue} == {1, 2, 3, 4}


def test_the_expected_padding_of_mixed_sizes_is_not_nothing(tmp_path: Path) -> None:
    padding = planned(tmp_path, ladder={"min": 1, "max": 8}).padding
    assert all(0 < share < 1 for share in padding.values())


def test_truncated_weights_of_a_built_in_family_are_refused_by_name(tmp_path: Path) -> None:
    source = ensure("builtin:vit-s14")
    folder = tmp_path / "vit"
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    with (source / "model.safetensors").open("rb") as whole:
        (folder / "model.safetensors").write_bytes(whole.read(1 << 20))
    entry = toy_entry(tmp_path, model={"adapter": "dinov2", "checkpoint": str(folder)})
    path = write(tmp_path, toy_document(tmp_path, entry))
    with pytest.raises(ConfigError, match=r"application 'toys': .*model\.safetensors has 1048576 bytes"):
        plan_service(read_service_file(path))


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    assert planned(tmp_path, model=model).sizing.ladder
    (tmp_path / "config.json").write_bytes((ensure("config:qwen2.5-vl-tiny") / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text("{}")
    model = {**model, "checkpoint": str(tmp_path)}
    assert planned(tmp_path, model=model).sizing.ladder
    with pytest.raises(ValueError, match=r"model\.safetensors: No such file"):
        planned(tmp_path, model={**model, "load_format": "safetensors"})


def test_a_plan_has_what_an_earlier_start_of_the_configuration_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_POOL_MEASURED", str(tmp_path / "measured"))
    assumed = planned(tmp_path, ladder={"min": 1, "max": 8})
    assert assumed.measured is None
    measured = keep(assumed.config, captured=2)
    known = planned(tmp_path, ladder={"min": 1, "max": 8})
    assert known.measured == measured
    assert known.sizing == assumed.sizing
    assert known.static_bytes < assumed.static_bytes
    assert known.padding != assumed.padding
    assert planned(tmp_path, ladder={"min": 1, "max": 8}, shard={"threads": 2}).measured is None


def test_a_plan_shows_padding_for_short_and_long_queues(tmp_path: Path) -> None:
    assert tuple(planned(tmp_path).padding) == QUEUE_DEPTHS


def test_a_service_has_a_plan_for_each_application_in_order(tmp_path: Path) -> None:
    entries = [toy_entry(tmp_path, "one"), toy_entry(tmp_path, "two", ladder={"budgets": [3]})]
    plans = plan_service(read_service_file(write(tmp_path, toy_document(tmp_path, *entries))))
    assert [plan.sizing.ladder[-1].budget for plan in plans] == [4, 3]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"ladder": {"min": 8, "max": 4}}, r"ladder\.min \(8\) is above ladder\.max \(4\)"),
        ({"model": {"adapter": "dino"}}, r"model\.adapter 'dino' is unknown"),
        ({"model": {"adapter": "tests.toy:Nothing"}}, r"model\.adapter .* has no class Nothing"),
        ({"model": {"checkpoint": "/nowhere"}}, r"model\.checkpoint '/nowhere' is no checkpoint"),
        ({"model": {"checkpoint": "builtin:none"}}, r"model\.checkpoint 'builtin:none' is unknown"),
        ({"model": {"adapter": "dinov2"}}, r"model\.checkpoint: .*config\.json: key 'model_type'"),
    ],
)
def test_what_cannot_work_is_refused_with_file_application_and_key(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    entries = [toy_entry(tmp_path, "one"), toy_entry(tmp_path, "two", **sections)]
    path = write(tmp_path, toy_document(tmp_path, *entries))
    with pytest.raises(ConfigError, match=rf"service\.yaml: application 'two': {message}"):
        plan_service(read_service_file(path))

"""The rules of the configuration, checked on every section and every key there is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import encoder_pool
from encoder_pool import config
from encoder_pool.config import (
    CacheConfig,
    DeliveryConfig,
    LadderConfig,
    LimitsConfig,
    ModelConfig,
    PoolConfig,
    QueueConfig,
    ScalingConfig,
    Section,
    ShardConfig,
)

PACKAGE = Path(encoder_pool.__file__).parent
SECTIONS = [
    kind
    for kind in vars(config).values()
    if isinstance(kind, type) and issubclass(kind, Section) and kind is not Section
]
MAY_BE_ZERO = {
    (ShardConfig, "max_restarts"),
    (ScalingConfig, "min_replicas"),
    (ScalingConfig, "upscale_delay_s"),
    (CacheConfig, "max_bytes"),
    (LadderConfig, "reserve_bytes"),
    (DeliveryConfig, "max_bytes"),
}


def document(**sections: Any) -> dict[str, Any]:
    """The shortest valid configuration, and these sections."""
    model = {"name": "toy", "adapter": "dinov2", "checkpoint": "builtin:vit-s14"}
    return {"model": model, **sections}


def required(section: type[Section]) -> dict[str, Any]:
    """Valid values for the section's keys that have no default."""
    whole = document()
    if section is PoolConfig:
        return whole
    return dict(whole.get(section_name(section), {}))


def section_name(section: type[Section]) -> str:
    return next(name for name, field in PoolConfig.model_fields.items() if field.annotation is section)


KEYS = [(section, name) for section in SECTIONS for name in section.model_fields]
NUMBERS = [
    (section, name)
    for section, name in KEYS
    if type(section.model_fields[name].default) in (int, float) or section is LadderConfig
]


def complaint(values: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        PoolConfig.model_validate(values)
    return str(caught.value)


def test_every_section_is_reachable_from_the_pool() -> None:
    reachable = {field.annotation for field in PoolConfig.model_fields.values()}
    assert reachable == {section for section in SECTIONS if section is not PoolConfig}


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_a_misspelt_key_is_refused_and_the_nearest_named(section: type[Section], key: str) -> None:
    with pytest.raises(ValidationError, match=f"unknown key '{key}x'; did you mean '{key}'"):
        section.model_validate({**required(section), f"{key}x": 1})


def test_a_key_that_is_like_none_is_refused_and_all_known_ones_named() -> None:
    message = complaint(document(queue={"zzz": 1}))
    assert "unknown key 'zzz'; known: " + ", ".join(QueueConfig.model_fields) in message


def test_a_key_that_is_no_text_is_refused_too() -> None:
    assert "unknown key '1'" in complaint(document(queue={1: 1}))


@pytest.mark.parametrize(("section", "key"), [pair for pair in KEYS if pair[0] is not PoolConfig])
def test_every_key_is_described_in_a_sentence(section: type[Section], key: str) -> None:
    description = section.model_fields[key].description
    assert description is not None
    assert description.endswith(".")
    assert description.isascii()


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_nothing_can_be_changed(section: type[Section], key: str) -> None:
    settings = section.model_validate(required(section))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, key, getattr(settings, key))


@pytest.mark.parametrize(("section", "key"), NUMBERS)
def test_a_number_that_counts_or_measures_must_be_positive(section: type[Section], key: str) -> None:
    for value in (-1,) if (section, key) in MAY_BE_ZERO else (-1, 0):
        with pytest.raises(ValidationError, match=rf"(?m)^{key}\b"):
            section.model_validate({**required(section), key: value})


def test_a_section_left_out_is_one_left_empty() -> None:
    optional = [name for name, field in PoolConfig.model_fields.items() if not field.is_required()]
    assert "queue" in optional
    empty: dict[str, Any] = {name: {} for name in optional}
    assert PoolConfig.model_validate(document(**empty)) == PoolConfig.model_validate(document())


def test_defaults_are_valid_values_of_their_keys() -> None:
    settings = PoolConfig.model_validate(document())
    assert PoolConfig.model_validate(settings.model_dump(mode="json")) == settings


def test_defaults_stand_here_only() -> None:
    """Nobody else makes a section from values of its own, and so no second default can exist.

    But a benchmark, which is configured like any user's pool.
    """
    names = {section.__name__ for section in SECTIONS}
    made = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "config.py" and path.parent.name != "bench"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    assert not made


def test_the_model_alone_has_no_default() -> None:
    message = complaint({})
    assert "model\n  Field required" in message
    assert message.count("Field required") == 1


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"ladder": {"max": 1}}, ["ladder needs 'min' beside 'max'", "without both"]),
        ({"ladder": {"budgets": [1], "min": 1}}, ["'budgets'", "'min'", "'max'", "not both"]),
        (
            {"ladder": {"budgets": [1], "rungs_per_octave": 2}},
            ["'budgets'", "'rungs_per_octave'", "not both"],
        ),
        ({"ladder": {"budgets": []}}, ["ladder.budgets is empty"]),
        (
            {"scaling": {"min_replicas": 3, "max_replicas": 2}},
            ["scaling.max_replicas (2)", "scaling.min_replicas (3)"],
        ),
        ({"shard": {"gpus": 0.5}}, ["shard.gpus (0.5)", "model.device 'cpu'"]),
    ],
)
def test_keys_that_contradict_each_other_are_named(sections: dict[str, Any], parts: list[str]) -> None:
    message = complaint(document(**sections))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "ladder", [{"min": 1, "max": 1}, {"min": 1, "max": 8, "rungs_per_octave": 4}, {"budgets": [1, 3]}]
)
def test_a_range_and_a_list_are_ladders(ladder: dict[str, Any]) -> None:
    settings = LadderConfig.model_validate(ladder)
    assert settings.model_dump(exclude_unset=True) == {
        key: tuple(value) if isinstance(value, list) else value for key, value in ladder.items()
    }
    assert not settings.is_automatic


@pytest.mark.parametrize(
    "ladder",
    [
        {},
        {"min": 4},
        {"rungs_per_octave": 2},
        {"longest_tiers": [64]},
        {"eager_max": 9},
        {"reserve_bytes": 0},
    ],
)
def test_without_a_largest_budget_the_ladder_is_found_by_measuring(ladder: dict[str, Any]) -> None:
    assert LadderConfig.model_validate(ladder).is_automatic


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (ModelConfig, "dtype", "float64"),
        (ModelConfig, "device", "tpu"),
        (ModelConfig, "name", ""),
        (LimitsConfig, "max_aspect_ratio", 0.5),
        (ModelConfig, "tensor_parallel_size", 0),
        (QueueConfig, "packs_in_flight", 5),
        (ShardConfig, "gpus", 1.5),
        (ShardConfig, "gpus", 0),
        (LadderConfig, "rungs_per_octave", 17),
        (LimitsConfig, "max_items", "many"),
    ],
)
def test_a_value_out_of_range_is_refused_at_its_key(section: type[Section], key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=rf"(?m)^{key}\n"):
        section.model_validate({**required(section), key: value})


@pytest.mark.parametrize(
    ("device", "shard", "gpus"), [("cpu", {}, 0.0), ("cuda", {}, 1.0), ("cuda", {"gpus": 0.25}, 0.25)]
)
def test_a_tower_on_a_gpu_takes_a_whole_one_unless_a_share_is_given(
    device: str, shard: dict[str, float], gpus: float
) -> None:
    values = document(shard=shard)
    values["model"]["device"] = device
    assert PoolConfig.model_validate(values).gpus == gpus


def test_a_configuration_without_weights_needs_dummy_ones() -> None:
    values = document()
    values["model"] |= {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-7b"}
    assert "set model.load_format dummy (it is safetensors)" in complaint(values)
    values["model"]["load_format"] = "dummy"
    assert PoolConfig.model_validate(values).model.load_format == "dummy"


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", "bfloat16"), ("cpu", "float32"), ("cuda", "float16"), ("cuda", "float32")],
)
def test_products_in_8_bits_need_a_gpu_and_bfloat16(device: str, dtype: str) -> None:
    values = document()
    values["model"] |= {"quantization": "fp8", "device": device, "dtype": dtype}
    assert (
        "model.quantization 'fp8' needs model.device cuda and model.dtype bfloat16 "
        f"(they are {device} and {dtype})"
    ) in complaint(values)
    values["model"] |= {"device": "cuda", "dtype": "bfloat16"}
    assert PoolConfig.model_validate(values).model.quantization == "fp8"


@pytest.mark.parametrize(
    ("model", "shard", "message"),
    [
        (
            {"quantization": "fp8", "dtype": "bfloat16"},
            {},
            "model.tensor_parallel_size must be 1 (it is 2)",
        ),
        (
            {},
            {"gpus": 0.5},
            "shard.gpus (0.5) must be 1 or unset with model.tensor_parallel_size 2",
        ),
    ],
)
def test_what_ranks_cannot_do_is_refused(
    model: dict[str, str], shard: dict[str, float], message: str
) -> None:
    values = document(shard=shard, ladder={"min": 1, "max": 8})
    values["model"] |= {"device": "cuda", "tensor_parallel_size": 2, **model}
    assert message in complaint(values)
    values["model"]["tensor_parallel_size"] = 1
    PoolConfig.model_validate(values)


def test_ranks_need_a_ladder_with_numbers() -> None:
    values = document()
    values["model"]["tensor_parallel_size"] = 2
    assert "or 'budgets', with model.tensor_parallel_size 2: how far it goes without" in complaint(values)


def test_a_section_must_be_a_mapping() -> None:
    assert "queue\n  Input should be a valid dictionary" in complaint(document(queue=[1]))

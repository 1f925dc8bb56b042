from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.config import ModelConfig
from encoder_pool.core import Media, Modality
from encoder_pool.pool.identity import Identity, weights_version


def key(
    data: bytes = b"photo", modality: Modality = Modality.IMAGE, weights: str = "v1", **model: Any
) -> bytes:
    settings = {"name": "qwen", "adapter": "grid", "checkpoint": "folder", **model}
    return Identity(ModelConfig.model_validate(settings), weights).key(Media(modality, data, "input[0]"))


def test_a_key_is_a_whole_sha256_and_the_same_wherever_the_item_stood() -> None:
    identity = Identity(ModelConfig(name="a", adapter="b", checkpoint="c"), "v1")
    first, second = (identity.key(Media(Modality.IMAGE, b"photo", param)) for param in ("input[0]", "file"))
    assert first == second
    assert len(first) == 32


def test_everything_that_decides_the_rows_changes_the_key() -> None:
    cuda: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16"}
    keys = [
        key(),
        key(b"photp"),
        key(b""),
        key(modality=Modality.VIDEO),
        key(weights="v2"),
        key(name="other"),
        key(checkpoint="other"),
        key(load_format="dummy"),
        key(dtype="float16"),
        key(**cuda),
        key(**cuda, quantization="fp8"),
        key(attention="math"),
    ]
    assert len(set(keys)) == len(keys)


def test_what_moves_from_one_field_to_the_next_is_another_item() -> None:
    assert key(b"ab", weights="c") != key(b"b", weights="ca")
    assert key(b"image" + b"x") != key(b"x")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "preprocessor_config.json").write_text('{"size": 224}')
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_another_setting_of_model_or_processor_is_another_version(checkpoint: Path, name: str) -> None:
    for load_format in ("safetensors", "dummy"):
        before = weights_version(checkpoint, load_format)
        text = (checkpoint / name).read_text()
        (checkpoint / name).write_text(text + " ")
        assert weights_version(checkpoint, load_format) != before


def test_other_weights_are_another_version_unless_they_are_not_read(checkpoint: Path) -> None:
    real, dummy = (weights_version(checkpoint, kind) for kind in ("safetensors", "dummy"))
    weights = checkpoint / "model.safetensors"
    written = weights.stat().st_mtime_ns
    os.utime(weights, ns=(written, written + 1))
    touched = weights_version(checkpoint, "safetensors")
    weights.write_bytes(bytes(101))
    os.utime(weights, ns=(written, written))
    assert len({real, touched, weights_version(checkpoint, "safetensors")}) == 3
    assert weights_version(checkpoint, "dummy") == dummy


def test_the_version_follows_from_the_files_alone_and_needs_no_weights(checkpoint: Path) -> None:
    assert weights_version(checkpoint, "safetensors") == weights_version(checkpoint, "safetensors")
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "folder").mkdir()
    assert weights_version(checkpoint, "safetensors") == weights_version(checkpoint, "dummy")

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from encoder_pool.launch.weight_files import INDEX, check_weight_files


def weights(folder: Path, name: str = "model.safetensors", *names: str) -> Path:
    path = folder / name
    save_file({each: np.ones((3, 4), np.float32) for each in names or ("a", "b")}, path, {"format": "pt"})
    return path


def sharded(folder: Path, **places: str) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def complaint(folder: Path) -> str:
    """What is said of the checkpoint, without its folder, which must be named."""
    with pytest.raises(ValueError, match="safetensors") as caught:
        check_weight_files(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}/")
    return message.removeprefix(f"{folder}/")


def test_whole_files_are_accepted(tmp_path: Path) -> None:
    weights(tmp_path)
    check_weight_files(tmp_path)


def test_whole_shards_are_accepted(tmp_path: Path) -> None:
    weights(tmp_path, "one.safetensors", "a", "b")
    weights(tmp_path, "two.safetensors", "c")
    sharded(tmp_path, a="one.safetensors", b="one.safetensors", c="two.safetensors")
    check_weight_files(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path) == "model.safetensors: No such file or directory"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    weights(tmp_path, "one.safetensors", "a")
    sharded(tmp_path, a="one.safetensors", c="two.safetensors")
    assert complaint(tmp_path) == "two.safetensors: No such file or directory"


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    weights(tmp_path, "one.safetensors", "a")
    sharded(tmp_path, a="one.safetensors", z="one.safetensors")
    assert complaint(tmp_path).startswith("one.safetensors lacks the tensor z")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    assert complaint(tmp_path).startswith(f"{INDEX} is no index")


@pytest.mark.parametrize("lost", [1, 90])
def test_a_truncated_file_is_named_with_its_size(tmp_path: Path, lost: int) -> None:
    path = weights(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    expected = f"has {len(whole) - lost} bytes; its header says {len(whole)}"
    assert complaint(tmp_path).startswith(f"model.safetensors {expected}")


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\xff" * 64, bytes(8), b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{{"]
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert complaint(tmp_path).startswith("model.safetensors is no whole safetensors file")

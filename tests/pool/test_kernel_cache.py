"""Compiled kernels are kept in our cache, unless the operator says otherwise or others could change them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from encoder_pool.pool.kernel_cache import ENABLED, PLACE, keep_kernels


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ENCODER_POOL_CACHE", str(tmp_path))
    for name in (ENABLED, PLACE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_they_are_kept_in_a_folder_of_ours_alone(cache: Path) -> None:
    keep_kernels()
    assert (os.environ[ENABLED], os.environ[PLACE]) == ("1", str(cache / "flash4"))
    assert (cache / "flash4").stat().st_mode & 0o777 == 0o700


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv(ENABLED, "0")
    keep_kernels()
    assert os.environ[ENABLED] == "0"
    assert not list(cache.iterdir())
    monkeypatch.delenv(ENABLED)
    monkeypatch.setenv(PLACE, "/elsewhere")
    keep_kernels()
    assert os.environ[PLACE] == "/elsewhere"


def test_where_others_can_write_nothing_is_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache / "flash4").mkdir()
    (cache / "flash4").chmod(0o777)
    keep_kernels()
    assert ENABLED not in os.environ
    assert "others than this user can write to" in caplog.text


def test_where_there_can_be_no_folder_nothing_is_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache / "flash4").write_text("no folder")
    keep_kernels()
    assert ENABLED not in os.environ
    assert "are not kept" in caplog.text

"""Compiled kernels are kept in our cache, unless the operator says where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from encoder_pool.pool.kernel_cache import keep_kernels

ENABLED, FOLDER = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"


def test_they_are_kept_in_our_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENCODER_POOL_CACHE", str(tmp_path))
    for name in (ENABLED, FOLDER):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    keep_kernels()
    assert (os.environ[ENABLED], os.environ[FOLDER]) == ("1", str(tmp_path / "flash4"))


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENABLED, "0")
    monkeypatch.setenv(FOLDER, "/elsewhere")
    keep_kernels()
    assert (os.environ[ENABLED], os.environ[FOLDER]) == ("0", "/elsewhere")

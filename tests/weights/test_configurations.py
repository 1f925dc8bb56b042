from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

import pytest

import encoder_pool
from encoder_pool.weights import configurations, ensure

PACKAGE = Path(encoder_pool.__file__).parent


def test_a_configuration_is_a_folder_of_the_package_without_weights() -> None:
    folder = ensure("config:qwen2.5-vl-7b")
    assert folder.is_relative_to(PACKAGE)
    assert (folder / "config.json").is_file()
    assert not list(folder.glob("*.safetensors"))


def test_an_unknown_configuration_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'config:qwen9' is unknown; .*config:qwen2\.5-vl-7b, .*-tiny, "):
        ensure("config:qwen9")


@pytest.mark.parametrize("name", ["", "..", "qwen3-vl-8b/..", "../configs/qwen3-vl-8b"])
def test_only_a_name_leads_to_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="is unknown; configurations: config:kimi-k2"):
        ensure(f"config:{name}")


def test_an_installed_package_has_the_files() -> None:
    document = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    (pattern,) = (
        one for one in document["tool"]["setuptools"]["package-data"]["encoder_pool"] if "json" in one
    )
    for name in configurations.names():
        files = [path.relative_to(PACKAGE).as_posix() for path in ensure(f"config:{name}").iterdir()]
        assert len(files) >= 2
        assert fnmatch.filter(files, pattern) == files

from __future__ import annotations

import re
from pathlib import Path

import pytest

from encoder_pool.towers.checkpoint import CheckpointFile, read


class Size(CheckpointFile):
    edge: int


class Example(CheckpointFile):
    size: Size


def test_declared_keys_are_read_and_others_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"size": {"edge": 3, "more": 1}, "other": null}')
    assert read(tmp_path, "config.json", Example) == Example(size=Size(edge=3))


@pytest.mark.parametrize(
    ("text", "key"), [('{"size": {}}', "size.edge"), ('{"size": {"edge": "x"}}', "size.edge"), ("{}", "size")]
)
def test_a_wrong_or_missing_key_is_named_with_its_file(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.json: key '{re.escape(key)}'"):
        read(tmp_path, "config.json", Example)


def test_malformed_json_is_a_value_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json"):
        read(tmp_path, "config.json", Example)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.checkpoint has no preprocessor_config\.json"):
        read(tmp_path, "preprocessor_config.json", Example)

"""What `make fuzz` once found is answered as it should be, and so is what it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.seeds import form, seeds
from tests.fuzz.targets import HEAD, TARGETS, fuzz_app, mended
from tests.odd_media import picture

FINDINGS = Path(__file__).parent / "findings"


def test_every_finding_is_answered() -> None:
    for path in FINDINGS.iterdir():
        if path.suffix != ".md":
            TARGETS[path.name.partition("-")[0]](path.read_bytes())


@pytest.mark.parametrize("target", ["parser", "uri", "image", "audio", "app"])
def test_every_seed_is_answered(target: str) -> None:
    inputs = seeds(target)
    assert inputs
    for data in (b"", *inputs):
        TARGETS[target](data)


def test_the_fuzzer_sees_a_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request is a finding once the decoder fails by itself."""

    def fails(*_: object) -> None:
        raise RuntimeError

    request = bytes([1]).ljust(HEAD, b"\0") + form(picture("PNG"))
    fuzz_app(request)
    monkeypatch.setattr("tests.http.decoding_pool.decode_image", fails)
    with pytest.raises(AssertionError, match="500"):
        fuzz_app(request)


def test_checksums_are_set_right() -> None:
    whole = picture("PNG")
    broken = whole[:40] + b"\0" * 4 + whole[44:]
    assert mended(whole) == whole
    assert mended(broken) != broken

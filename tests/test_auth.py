from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from encoder_pool.auth import Keys, load_keys
from encoder_pool.builder import build_app
from encoder_pool.config import AuthConfig, PoolConfig

VARIABLE = "SOME_POOLS_KEYS"


def keys_of(text: str, monkeypatch: pytest.MonkeyPatch) -> Keys | None:
    monkeypatch.setenv(VARIABLE, text)
    return load_keys(AuthConfig(keys_env=VARIABLE))


def test_without_a_place_for_keys_none_is_needed() -> None:
    assert load_keys(AuthConfig()) is None


@pytest.mark.parametrize("text", ["alpha,beta", " alpha , beta,\n", "alpha\nbeta", "alpha,beta,alpha"])
def test_keys_are_separated_by_commas_or_lines(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(text, monkeypatch)
    assert keys is not None
    assert keys.accept(b"alpha")
    assert keys.accept(b"beta")
    for other in (b"", b"alph", b"alphaa", b"ALPHA", b"alpha,beta", b"gamma", b"\xff"):
        assert not keys.accept(other)


def test_keys_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha\nbeta\n")
    keys = load_keys(AuthConfig(keys_file=file))
    assert keys is not None
    assert (len(keys), keys.accept(b"beta")) == (2, True)


@pytest.mark.parametrize("text", ["", " ", ",", "\n"])
def test_a_place_without_keys_is_refused_by_its_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=rf"{VARIABLE} \(auth.keys_env\) holds no key"):
        keys_of(text, monkeypatch)


def test_a_variable_or_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no key"):
        load_keys(AuthConfig(keys_env="NOBODY_HAS_SET_THIS"))
    with pytest.raises(ValueError, match="cannot be read: FileNotFoundError"):
        load_keys(AuthConfig(keys_file=tmp_path / "nothing"))


@pytest.mark.parametrize("secret", ["two words", "caf\u00e9", "tab\tkey"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        keys_of(f"fine,{secret}", monkeypatch)
    assert secret not in str(caught.value)
    assert "fine" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"secret\xff")
    with pytest.raises(ValueError, match="UnicodeDecodeError") as caught:
        load_keys(AuthConfig(keys_file=file))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_set_of_keys_does_not_show_them() -> None:
    keys = Keys(["alpha"])
    assert "alpha" not in repr(keys)
    assert "alpha" not in repr(vars(keys))


def test_every_key_is_compared_in_constant_time_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    keys = Keys(["alpha", "beta", "gamma"])
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given in (b"alpha", b"gamma", b"x", b"x" * 1000):
        compared.clear()
        keys.accept(given)
        assert [len(side) for pair in compared for side in pair] == [32] * 6


def test_both_places_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="either 'keys_env' or 'keys_file'"):
        AuthConfig(keys_env=VARIABLE, keys_file=Path("keys"))


def test_an_application_is_not_built_without_its_keys(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": str(tmp_path)}
    sections = {"model": model, "ladder": {"min": 1, "max": 4}, "auth": {"keys_env": "NOBODY_HAS_SET_THIS"}}
    with pytest.raises(ValueError, match="NOBODY_HAS_SET_THIS"):
        build_app(PoolConfig.model_validate(sections))

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.client.errors import InvalidReplyError
from encoder_pool.client.reply import items_of
from encoder_pool.core import DType, Media, Modality
from encoder_pool.http.wire import Answer, safetensors_chunks
from tests.http.fake_pool import GRID, PREFIX, WIDTH, embedding_of


def _body(dtype: DType = DType.FLOAT32, *names: bytes) -> bytes:
    embeddings = tuple(embedding_of(Media(Modality.IMAGE, name, ""), dtype) for name in names or (b"a",))
    return b"".join(safetensors_chunks(Answer("id", "fake", embeddings)))


def _forged(tensor: dict[str, Any], items: str | None = None) -> bytes:
    """A body of 80 bytes of rows whose header claims what it likes."""
    whole = _body()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    header["embeddings.0"].update(tensor)
    header["__metadata__"]["items"] = items if items is not None else header["__metadata__"]["items"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(80)


@pytest.mark.parametrize("dtype", DType)
def test_items_come_back_in_order_bit_for_bit_and_own_their_memory(dtype: DType) -> None:
    items = items_of(_body(dtype, b"a", b"b", b"c"))
    for name, item in zip((b"a", b"b", b"c"), items, strict=True):
        sent = embedding_of(Media(Modality.IMAGE, name, ""), dtype)
        np.testing.assert_array_equal(item.rows, sent.rows)
        assert item.rows.flags.owndata or item.rows.base is not None
        assert item.rows.flags.writeable
        assert (item.dtype, item.modality, item.grid) == (dtype, sent.modality, sent.grid)
        assert (item.prefix_tokens, item.source, item.digest) == (sent.prefix, sent.source, sent.digest)
        assert item.parts == sent.parts
        np.testing.assert_array_equal(item.part("merger"), item.embedding[:, :1])
        np.testing.assert_array_equal(item.part("deepstack.0"), item.embedding[:, 1:])
        with pytest.raises(KeyError):
            item.part("deepstack.1")
        assert (item.tokens, item.width) == sent.rows.shape


def test_numbers_are_the_same_through_numpy_and_torch() -> None:
    (item,) = items_of(_body(DType.BFLOAT16))
    assert item.embedding.dtype == np.float32
    assert item.torch().dtype == torch.bfloat16
    np.testing.assert_array_equal(item.embedding, item.torch().float().numpy())
    (half,) = items_of(_body(DType.FLOAT16))
    assert half.embedding.dtype == np.float16
    assert half.torch().dtype == torch.float16


def test_patches_and_prefix_share_the_rows_between_them() -> None:
    (item,) = items_of(_body())
    assert item.prefix.shape == (PREFIX, WIDTH)
    assert item.patches.shape == (*GRID, WIDTH)
    np.testing.assert_array_equal(
        np.concatenate([item.prefix, item.patches.reshape(-1, WIDTH)]), item.embedding
    )


@pytest.mark.parametrize(
    "tensor",
    [
        {"data_offsets": [0, 88]},
        {"data_offsets": [-80, 0]},
        {"data_offsets": [80, 0]},
        {"data_offsets": [0, 76]},
        {"data_offsets": [0]},
        {"data_offsets": ["0", "80"]},
        {"shape": [20]},
        {"shape": [5, 5]},
        {"shape": [-5, -4]},
        {"shape": [5, "4"]},
        {"shape": None},
        {"dtype": "F64"},
        {"dtype": "BF16"},
    ],
)
def test_a_header_that_does_not_fit_its_bytes_is_refused(tensor: dict[str, Any]) -> None:
    with pytest.raises(InvalidReplyError):
        items_of(_forged(tensor))


@pytest.mark.parametrize("items", ["", "{", "{}0", "[{}]", "[1]", "[" * 5000, '[{"modality": "smell"}]'])
def test_a_description_that_says_too_little_is_refused(items: str) -> None:
    with pytest.raises(InvalidReplyError):
        items_of(_forged({}, items))


@pytest.mark.parametrize("length", [0, 4, 8, 20, -1])
def test_a_cut_body_is_refused(length: int) -> None:
    with pytest.raises(InvalidReplyError):
        items_of(_body()[:length])


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(InvalidReplyError):
        items_of(noise)


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_harmless(position: int, value: int) -> None:
    body = bytearray(_body())
    body[position] = value
    with suppress(InvalidReplyError):
        assert len(items_of(bytes(body))) == 1

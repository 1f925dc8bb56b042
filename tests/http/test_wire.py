from __future__ import annotations

import base64
import json
import pickle
import struct

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from encoder_pool.core import DType, Embedding, Grid, Media, Modality, Source
from encoder_pool.http.schema import EncodeReply
from encoder_pool.http.wire import Answer, ChunkedResponse, json_document, safetensors_chunks
from tests.http.fake_pool import embedding_of

TORCH = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
}
shapes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4)


def _embedding(shape: tuple[int, int], dtype: DType, seed: int = 0) -> Embedding:
    """Finite rows of random bits."""
    noise = np.random.default_rng(seed).bytes(shape[0] * shape[1] * dtype.storage.itemsize)
    rows = np.frombuffer(noise, f"u{dtype.storage.itemsize}").reshape(shape).copy()
    exponent = {DType.FLOAT32: 0x7F800000, DType.FLOAT16: 0x7C00, DType.BFLOAT16: 0x7F80}[dtype]
    rows[(rows & exponent) == exponent] = 1
    source = Source("JPEG", 640, 480)
    return Embedding(rows.view(dtype.storage), dtype, Modality.IMAGE, Grid(1, 2, 3), 1, (), "ab" * 32, source)


def _answer(*embeddings: Embedding) -> Answer:
    return Answer("request-1", "fake", embeddings)


def _values(embedding: Embedding) -> list[list[float]]:
    """The rows as numbers, by torch's own rules."""
    signed = embedding.rows.view(np.int16 if embedding.rows.itemsize == 2 else np.int32)
    tensor = torch.from_numpy(signed.copy()).view(TORCH[embedding.dtype])
    values: list[list[float]] = tensor.double().tolist()
    return values


@settings(deadline=None)
@given(shapes, st.sampled_from(DType))
def test_safetensors_loads_what_was_written_bit_for_bit(shapes: list[tuple[int, int]], dtype: DType) -> None:
    embeddings = [_embedding(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    body = b"".join(safetensors_chunks(_answer(*embeddings)))
    loaded = safetensors.torch.load(body)
    assert sorted(loaded) == sorted(f"embeddings.{index}" for index in range(len(shapes)))
    for index, embedding in enumerate(embeddings):
        tensor = loaded[f"embeddings.{index}"]
        assert tensor.dtype == TORCH[dtype]
        assert tuple(tensor.shape) == embedding.rows.shape
        assert tensor.view(torch.uint8).numpy().tobytes() == embedding.rows.tobytes()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_the_numpy_loader_of_safetensors_reads_it_too(dtype: DType) -> None:
    import safetensors.numpy

    embedding = _embedding((5, 7), dtype)
    loaded = safetensors.numpy.load(b"".join(safetensors_chunks(_answer(embedding))))
    np.testing.assert_array_equal(loaded["embeddings.0"], embedding.rows)


def test_the_rows_leave_uncopied_and_start_aligned() -> None:
    embeddings = [_embedding((3, 5), DType.FLOAT16), _embedding((2, 5), DType.FLOAT16, 1)]
    header, *views = safetensors_chunks(_answer(*embeddings))
    assert len(header) % 8 == 0
    assert struct.unpack("<Q", header[:8]) == (len(header) - 8,)
    for view, embedding in zip(views, embeddings, strict=True):
        assert isinstance(view, memoryview)
        assert np.shares_memory(np.frombuffer(view, np.uint8), embedding.rows)


def test_rows_that_are_not_contiguous_are_written_in_order() -> None:
    whole = _embedding((4, 6), DType.FLOAT32)
    column = Embedding(
        whole.rows[:, ::2], whole.dtype, whole.modality, whole.grid, 0, (), whole.digest, whole.source
    )
    loaded = safetensors.torch.load(b"".join(safetensors_chunks(_answer(column))))
    np.testing.assert_array_equal(loaded["embeddings.0"].numpy(), whole.rows[:, ::2])


def test_the_metadata_says_what_each_item_is() -> None:
    image = embedding_of(Media(Modality.IMAGE, b"a", "input[0]"))
    audio = embedding_of(Media(Modality.AUDIO, b"b", "input[1]"))
    header = safetensors_chunks(_answer(image, audio))[0]
    metadata = json.loads(bytes(header[8:]))["__metadata__"]
    assert (metadata["request_id"], metadata["model"]) == ("request-1", "fake")
    items = json.loads(metadata["items"])
    assert items[0] == {
        "index": 0,
        "modality": "image",
        "tokens": 5,
        "width": 4,
        "dtype": "float32",
        "grid": [1, 2, 2],
        "prefix_tokens": 1,
        "parts": [{"name": "merger", "width": 1}, {"name": "deepstack.0", "width": 3}],
        "source": {"format": "PNG", "width": 2, "height": 2, "seconds": 0.0},
        "digest": image.digest,
    }
    assert [item["modality"] for item in items] == ["image", "audio"]


@settings(deadline=None)
@given(shapes, st.sampled_from(DType))
def test_json_floats_are_exact(shapes: list[tuple[int, int]], dtype: DType) -> None:
    embeddings = [_embedding(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    document = json.loads(json_document(_answer(*embeddings), "float"))
    for item, embedding in zip(document["data"], embeddings, strict=True):
        assert item["embedding"] == _values(embedding)


@settings(deadline=None)
@given(shapes, st.sampled_from(DType))
def test_json_base64_holds_the_bits(shapes: list[tuple[int, int]], dtype: DType) -> None:
    embeddings = [_embedding(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    document = json.loads(json_document(_answer(*embeddings), "base64"))
    assert document["usage"] == {"total_tokens": sum(tokens for tokens, _ in shapes)}
    for item, embedding in zip(document["data"], embeddings, strict=True):
        assert item["embedding"]["dtype"] == item["dtype"] == dtype.value
        assert item["embedding"]["shape"] == [item["tokens"], item["width"]] == list(embedding.rows.shape)
        assert base64.b64decode(item["embedding"]["data"]) == embedding.rows.tobytes()


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_the_json_document_is_the_one_that_the_docs_describe(encoding: str) -> None:
    document = json_document(
        _answer(_embedding((2, 3), DType.BFLOAT16)), "float" if encoding == "float" else "base64"
    )
    reply = EncodeReply.model_validate_json(document)
    assert reply.model_dump(mode="json") == json.loads(document)


async def test_a_response_in_pieces_announces_its_length_and_survives_pickle() -> None:
    """Ray Serve pickles ASGI messages when it runs without HAProxy."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    chunks = safetensors_chunks(_answer(_embedding((3, 4), DType.FLOAT16)))
    response = ChunkedResponse(chunks, "application/vnd.safetensors", {"server-timing": "total;dur=1"})
    await response({"type": "http"}, _never, send)
    start, *bodies = pickle.loads(pickle.dumps(sent))
    headers = dict(start["headers"])
    body = b"".join(message["body"] for message in bodies)
    assert int(headers[b"content-length"]) == len(body)
    assert headers[b"content-type"] == b"application/vnd.safetensors"
    assert body == b"".join(chunks)
    assert [message["more_body"] for message in bodies] == [True, False]


async def _never() -> Message:
    raise AssertionError("a response does not listen")

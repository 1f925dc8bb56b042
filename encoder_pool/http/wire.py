"""Embeddings -> response bodies: safetensors without a copy, JSON, or where in shared memory they are.

safetensors   an 8-byte little-endian header length, a JSON header, then the rows of all items, one item after
              the other (https://github.com/huggingface/safetensors#format). The header is written here
              because the library copies every tensor twice and numpy has no bfloat16; the rows leave as
              memoryviews of the pool's own arrays, each as one ASGI message under one content-length.
JSON          OpenAI's list shape, rows in base64 (little endian) or as floats.
shared memory JSON that says where the rows are, how to come by them, and until when.

Rows are finite, the pool sees to it, so no NaN or infinity can reach a JSON document. The machine is
little endian. Knows nothing of negotiation or of the pool.
"""

from __future__ import annotations

import base64
import copyreg
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from encoder_pool.core import DType, Embedding
from encoder_pool.http.schema import Encoding
from encoder_pool.http.service import Shared

SAFETENSORS_DTYPES = {DType.FLOAT32: "F32", DType.FLOAT16: "F16", DType.BFLOAT16: "BF16"}
HEADER_ALIGNMENT = 8
"""The header is padded with spaces so that the rows start aligned, as the format asks."""

# Without HAProxy, Ray Serve pickles ASGI messages on their way to its proxy, and a memoryview has no pickle.
copyreg.pickle(memoryview, lambda view: (memoryview, (view.tobytes(),)))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is written: the embeddings in the caller's order, and the names that go with them."""

    request_id: str
    model: str
    embeddings: tuple[Embedding, ...]


class ChunkedResponse(Response):
    """A body in pieces that are sent as they are, one ASGI message each, under one content-length."""

    def __init__(
        self, chunks: Sequence[bytes | memoryview], media_type: str, headers: Mapping[str, str]
    ) -> None:
        length = sum(len(chunk) for chunk in chunks)
        super().__init__(headers={**headers, "content-length": str(length)}, media_type=media_type)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the start and every piece."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        *before, last = self._chunks
        for chunk in before:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": last, "more_body": False})


def safetensors_chunks(answer: Answer) -> list[bytes | memoryview]:
    """The header, then each item's rows as a memoryview of its array."""
    views = [_raw(embedding.rows) for embedding in answer.embeddings]
    items = [describe(index, embedding) for index, embedding in enumerate(answer.embeddings)]
    metadata = {"request_id": answer.request_id, "model": answer.model, "items": json.dumps(items)}
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for index, (embedding, view) in enumerate(zip(answer.embeddings, views, strict=True)):
        header[f"embeddings.{index}"] = {
            "dtype": SAFETENSORS_DTYPES[embedding.dtype],
            "shape": embedding.rows.shape,
            "data_offsets": (at, at + len(view)),
        }
        at += len(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *views]


def json_document(answer: Answer, encoding: Encoding) -> bytes:
    """The whole document. Rows as floats take some 80 ns a number, so callers run this in a thread."""
    data = [
        {
            "object": "embedding",
            **describe(index, embedding),
            "embedding": _floats(embedding) if encoding == "float" else _base64(embedding),
        }
        for index, embedding in enumerate(answer.embeddings)
    ]
    return to_json(
        {
            "id": answer.request_id,
            "object": "list",
            "model": answer.model,
            "data": data,
            "usage": _usage(answer),
        }
    )


def shared_document(answer: Answer, shared: Shared) -> bytes:
    """The document of an answer whose rows are in shared memory: `schema.SharedReply`."""
    data = [
        {"object": "embedding", **describe(index, embedding), "offset": offset}
        for index, (embedding, offset) in enumerate(zip(answer.embeddings, shared.offsets, strict=True))
    ]
    return to_json(
        {
            "id": answer.request_id,
            "object": "list",
            "model": answer.model,
            "data": data,
            "memory": asdict(shared.handle),
            "usage": _usage(answer),
        }
    )


def describe(index: int, embedding: Embedding) -> dict[str, Any]:
    """What both formats say of an item, as JSON: the fields of `schema.ItemInfo`."""
    tokens, width = embedding.rows.shape
    source = embedding.source
    return {
        "index": index,
        "modality": embedding.modality.value,
        "tokens": tokens,
        "width": width,
        "dtype": embedding.dtype.value,
        "grid": list(embedding.grid),
        "prefix_tokens": embedding.prefix,
        "parts": [{"name": part.name, "width": part.width} for part in embedding.parts],
        "source": {
            "format": source.format,
            "width": source.width,
            "height": source.height,
            "seconds": source.seconds,
        },
        "digest": embedding.digest,
    }


def _usage(answer: Answer) -> dict[str, int]:
    return {"total_tokens": sum(len(embedding.rows) for embedding in answer.embeddings)}


def _raw(rows: npt.NDArray[np.generic]) -> memoryview:
    """The bytes of the rows, uncopied if they are contiguous."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def _base64(embedding: Embedding) -> dict[str, Any]:
    data = base64.b64encode(_raw(embedding.rows)).decode("ascii")
    return {"dtype": embedding.dtype.value, "shape": embedding.rows.shape, "data": data}


def _floats(embedding: Embedding) -> list[list[float]]:
    """The rows as numbers, exactly: a bfloat16 is the upper half of a float32, a double holds them all."""
    rows = embedding.rows
    if embedding.dtype is DType.BFLOAT16:
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    numbers: list[list[float]] = rows.tolist()
    return numbers

"""An answer -> items with numpy arrays: over memory of their own, or over memory that the server shares.

Safetensors are read here because the library's numpy loader has no bfloat16. Everything that an answer claims
is checked against the bytes that came. torch is imported only by `EncodedItem.torch`. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from encoder_pool.client.errors import InvalidReplyError
from encoder_pool.core import DType, Grid, Modality, Part, Source
from encoder_pool.delivery.handle import Handle
from encoder_pool.delivery.take import Lease, take

if TYPE_CHECKING:
    import torch

DTYPES = {"F32": DType.FLOAT32, "F16": DType.FLOAT16, "BF16": DType.BFLOAT16}
LENGTH_BYTES = 8
"""A safetensors file starts with the length of its header, little endian."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedItem:
    """One item's embedding and what the server says of the item.

    rows           (tokens, width) as the server stores them; bfloat16 as its bits in uint16
    grid           frames (or windows), rows and columns of the patches
    prefix_tokens  leading rows that belong to no grid position, e.g. one class token
    parts          the columns from left to right, if they are several things, e.g. deepstack levels
    source         what the decoder found
    digest         hex SHA-256 of the bytes that were sent
    lease          on the shared memory of the whole answer, where `rows` lies; None if it owns its memory
    """

    rows: npt.NDArray[np.generic]
    dtype: DType
    modality: Modality
    grid: Grid
    prefix_tokens: int
    parts: tuple[Part, ...]
    source: Source
    digest: str
    lease: Lease | None = None

    @property
    def tokens(self) -> int:
        """Rows of the embedding."""
        return int(self.rows.shape[0])

    @property
    def width(self) -> int:
        """Columns of the embedding."""
        return int(self.rows.shape[1])

    @property
    def embedding(self) -> npt.NDArray[Any]:
        """(tokens, width) in float32 or float16; bfloat16 becomes float32, exactly."""
        if self.dtype is DType.BFLOAT16:
            return (self.rows.astype(np.uint32) << 16).view(np.float32)
        return self.rows

    def part(self, name: str) -> npt.NDArray[Any]:
        """(tokens, width of the part): the columns of that name. Raises KeyError if there are none."""
        start = 0
        for part in self.parts:
            if part.name == name:
                return self.embedding[:, start : start + part.width]
            start += part.width
        raise KeyError(name)

    @property
    def prefix(self) -> npt.NDArray[Any]:
        """(prefix_tokens, width): the rows that belong to no grid position."""
        return self.embedding[: self.prefix_tokens]

    @property
    def patches(self) -> npt.NDArray[Any]:
        """(t, h, w, width): one row for each grid position.

        Raises ValueError for a tower that merges positions, whose rows do not fill the grid.
        """
        rows = self.embedding[self.prefix_tokens :]
        return rows.reshape(*self.grid, self.width)

    def torch(self) -> torch.Tensor:
        """(tokens, width) as a tensor of `dtype`, over the memory of `rows`."""
        import torch

        if self.dtype is DType.BFLOAT16:
            return torch.from_numpy(self.rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self.rows)


def items_of(body: bytes) -> list[EncodedItem]:
    """All items of an answer, in the order of the request; InvalidReplyError if it is malformed."""
    try:
        header, start = _header(body)
        described = json.loads(header["__metadata__"]["items"])
        return [_item(body, start, header[f"embeddings.{i}"], each) for i, each in enumerate(described)]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidReplyError(f"the answer is no valid safetensors document: {error!r}") from error


def shared_items_of(body: bytes) -> list[EncodedItem]:
    """All items of an answer in shared memory, which they hold while they live.

    Raises HandleGoneError if the memory cannot be had, InvalidReplyError if the answer is malformed.
    """
    try:
        document = json.loads(body)
        offsets = [each["offset"] for each in document["data"]]
        return items_in(Handle(**document["memory"]), offsets, document["data"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidReplyError(f"the answer is no valid shared memory document: {error!r}") from error


def items_in(
    handle: Handle, offsets: Sequence[int], described: Sequence[Mapping[str, Any]]
) -> list[EncodedItem]:
    """All items of an answer in the memory of a handle. Raises HandleGoneError if it cannot be had."""
    memory, lease = take(handle)
    return [
        item_of(_rows_in(memory, offset, each), each, lease)
        for offset, each in zip(offsets, described, strict=True)
    ]


def _rows_in(memory: mmap, offset: int, described: Mapping[str, Any]) -> npt.NDArray[np.generic]:
    dtype = DType(described["dtype"])
    shape = described["tokens"], described["width"]
    if min(*shape, offset) < 0:
        raise ValueError("an item's place is negative")
    return np.frombuffer(memory, dtype.storage, shape[0] * shape[1], offset).reshape(shape)


def _header(body: bytes) -> tuple[dict[str, Any], int]:
    """The header and where the rows start."""
    start = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
    if start > len(body):
        raise ValueError(f"the header ends at byte {start} of {len(body)}")
    header: dict[str, Any] = json.loads(body[LENGTH_BYTES:start])
    return header, start


def _item(body: bytes, start: int, tensor: dict[str, Any], described: dict[str, Any]) -> EncodedItem:
    dtype = DTYPES[tensor["dtype"]]
    tokens, width = tensor["shape"]
    first, end = tensor["data_offsets"]
    if not (0 <= first <= end <= len(body) - start and min(tokens, width) >= 0):
        raise ValueError("a tensor lies outside the body")
    if end - first != tokens * width * dtype.storage.itemsize:
        raise ValueError("a tensor's shape does not fit its bytes")
    rows = np.frombuffer(body, dtype.storage, tokens * width, start + first).reshape(tokens, width).copy()
    return item_of(rows, described, None)


def item_of(rows: npt.NDArray[np.generic], described: Mapping[str, Any], lease: Lease | None) -> EncodedItem:
    """An item of these rows, and of what the server says of it."""
    return EncodedItem(
        rows=rows,
        dtype=DType(described["dtype"]),
        modality=Modality(described["modality"]),
        grid=Grid(*described["grid"]),
        prefix_tokens=described["prefix_tokens"],
        parts=tuple(Part(part["name"], part["width"]) for part in described["parts"]),
        source=Source(*(described["source"][name] for name in ("format", "width", "height", "seconds"))),
        digest=described["digest"],
        lease=lease,
    )

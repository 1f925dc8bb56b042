"""Whether a checkpoint's safetensors files are whole, seen from their headers: no torch, no tensor is read.

A file is an 8-byte little-endian header length, a JSON header with the offsets of every tensor, and then the
tensors (https://github.com/huggingface/safetensors#format). Which tensors there must be, and of which shape,
only the tower knows, when it loads them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, RootModel, ValidationError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


class _Index(BaseModel):
    """The file that names the shard of every tensor."""

    weight_map: dict[str, str]


class _Tensor(BaseModel):
    """Of an entry of the header, what tells where it ends."""

    data_offsets: tuple[int, int]


_Header = RootModel[dict[str, _Tensor]]


def check_weight_files(checkpoint: Path) -> None:
    """Raises ValueError, naming file and fault, unless all files of the checkpoint's weights are whole."""
    for file, names in _expected(checkpoint).items():
        lacking = sorted(names - _tensors(file))
        if lacking:
            raise ValueError(f"{file} lacks the tensor {lacking[0]}, which {INDEX} places there")


def _expected(checkpoint: Path) -> dict[Path, set[str]]:
    """The files that there must be, and the tensors that the index, if there is one, places in each."""
    single, index = checkpoint / WEIGHTS, checkpoint / INDEX
    if single.exists() or not index.exists():
        return {single: set()}
    try:
        places = _Index.model_validate_json(index.read_bytes()).weight_map
    except (OSError, ValidationError) as error:
        raise ValueError(f"{index} is no index of safetensors files: it needs a 'weight_map'") from error
    files: dict[Path, set[str]] = {}
    for name, file in places.items():
        files.setdefault(checkpoint / file, set()).add(name)
    return files


def _tensors(file: Path) -> set[str]:
    """Names of the tensors in a file that holds all their bytes."""
    try:
        size = file.stat().st_size
        header, start = _header(file, size)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    end = start + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    if end != size:
        raise ValueError(f"{file} has {size} bytes; its header says {end}: it is truncated or damaged")
    return set(header)


def _header(file: Path, size: int) -> tuple[dict[str, _Tensor], int]:
    """The header's tensors, and where their bytes start."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(PREFIX_BYTES), "little")
        start = PREFIX_BYTES + length
        if length > MAX_HEADER_BYTES or start > size:
            raise ValueError(f"{file} is no whole safetensors file: its header does not fit its {size} bytes")
        text = stream.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        return _Header.model_validate(entries).root, start
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no whole safetensors file: its header cannot be read") from error

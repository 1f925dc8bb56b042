"""Reads the tensors of a CTranslate2 model file, binary version 6, without CTranslate2.

Layout, little-endian (CTranslate2's python/ctranslate2/specs/model_spec.py writes it):
version u32, spec name, spec revision u32, number of variables u32, then per variable: name, rank u8,
dimensions u32 each, type u8, bytes u32, data; then aliases. A string is a u16 length that counts a
closing NUL. Every length is checked against what is left of the file before it is used.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

_VERSION = 6
_DTYPES: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("<f4"),
    1: np.dtype("i1"),
    2: np.dtype("<i2"),
    3: np.dtype("<i4"),
    4: np.dtype("<f2"),
}


class _Cursor:
    """A position in the file's bytes that never passes their end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int) -> memoryview:
        left = len(self._data) - self._at
        if size > left:
            raise ValueError(f"it ends early: {size} bytes wanted at byte {self._at}, {left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, code: str) -> int:
        value: int = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]
        return value

    def text(self) -> str:
        raw = bytes(self.take(self.number("H")))
        if not raw.endswith(b"\0"):
            raise ValueError(f"a string before byte {self._at} does not end with NUL")
        return raw[:-1].decode("ascii")


def read(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """The variables by name, as views of `data`; aliases are left out. Raises ValueError if malformed."""
    cursor = _Cursor(data)
    version = cursor.number("I")
    if version != _VERSION:
        raise ValueError(f"its binary version is {version}; only {_VERSION} can be read")
    cursor.text()
    cursor.number("I")
    return dict(_variable(cursor) for _ in range(cursor.number("I")))


def _variable(cursor: _Cursor) -> tuple[str, npt.NDArray[np.generic]]:
    name = cursor.text()
    shape = tuple(cursor.number("I") for _ in range(cursor.number("B")))
    code, size = cursor.number("B"), cursor.number("I")
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise ValueError(f"variable {name} has the unknown type {code}")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"variable {name} has shape {shape} of {dtype}, which are not {size} bytes")
    return name, np.frombuffer(cursor.take(size), dtype).reshape(shape)

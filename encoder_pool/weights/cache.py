"""The folder of converted checkpoints: created whole under a lock, checked on every use.

A checkpoint's folder is either complete or absent: it is built in a workspace beside it and renamed.
The small files are compared byte for byte on every use. The weights are hashed when they are written;
later a stamp (size and modification time) shows that they are untouched, else they are hashed again.
Knows nothing of where weights come from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from encoder_pool.weights.errors import WeightsError
from encoder_pool.weights.progress import Progress

WEIGHTS = "model.safetensors"
_STAMP = "verified.json"


class Contents(NamedTuple):
    """What a checkpoint's folder must hold.

    documents       small files by name
    weights_sha256  hex digest of model.safetensors
    """

    documents: Mapping[str, bytes]
    weights_sha256: str


def location() -> Path:
    """Where the cache is, or will be: ENCODER_POOL_CACHE, by default ~/.cache/encoder-pool."""
    return Path(os.environ.get("ENCODER_POOL_CACHE") or "~/.cache/encoder-pool").expanduser()


def root() -> Path:
    """The cache, created if need be. Raises WeightsError if it cannot be."""
    folder = location()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WeightsError(
            f"the cache {folder} cannot be created ({error.strerror}); "
            "set ENCODER_POOL_CACHE to another folder"
        ) from error
    return folder


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(folder: Path, contents: Contents) -> bool:
    """Whether the folder holds these contents."""
    for name, document in contents.documents.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != document:
            return False
    weights = folder / WEIGHTS
    if not weights.is_file():
        return False
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_bytes() == _stamp(weights, contents.weights_sha256):
        return True
    return sha256(weights) == contents.weights_sha256


def _stamp(weights: Path, digest: str) -> bytes:
    status = weights.stat()
    record = {"sha256": digest, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    return json.dumps(record, indent=2).encode()


@contextmanager
def exclusive(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock; the kernel drops it with the process, so a crash leaves nothing to clean."""
    with (folder.parent / f".{folder.name}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the same weights", None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, on the same file system. The caller holds the folder's lock."""
    prefix = f".{folder.name}.work-"
    for left_by_a_killed_process in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_killed_process)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as path:
        yield Path(path)


def publish(weights: bytes, contents: Contents, workspace: Path, folder: Path) -> None:
    """Write a checkpoint and put it in the place of whatever `folder` was.

    weights are the bytes of model.safetensors; raises WeightsError if their digest is not the expected one.
    """
    new = workspace / "checkpoint"
    new.mkdir()
    for name, document in contents.documents.items():
        (new / name).write_bytes(document)
    (new / WEIGHTS).write_bytes(weights)
    digest = sha256(new / WEIGHTS)
    if digest != contents.weights_sha256:
        raise WeightsError(
            f"the weights converted for {folder.name} have SHA-256 {digest}, not the expected "
            f"{contents.weights_sha256}; install the package versions that this release was tested with"
        )
    (new / _STAMP).write_bytes(_stamp(new / WEIGHTS, digest))
    if folder.exists():
        folder.rename(workspace / "damaged")
    new.rename(folder)

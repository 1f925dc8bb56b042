"""The keys that callers may bring: read from the environment or a file, and held as digests only.

No key is ever in a configuration, a log, an error or a repr. Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from encoder_pool.config import AuthConfig


class Keys:
    """A set of keys that can be compared against and not read back."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def accept(self, given: bytes) -> bool:
        """Whether this is one of the keys; takes as long whichever it is, and if it is none."""
        digest = _digest(given)
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        return is_known

    def __len__(self) -> int:
        """How many there are."""
        return len(self._digests)


def load_keys(auth: AuthConfig) -> Keys | None:
    """The keys of `auth`, None if it asks for none. Raises ValueError, naming the place, if it has none."""
    if auth.keys_env is not None:
        place = f"the environment variable {auth.keys_env} (auth.keys_env)"
        text = os.environ.get(auth.keys_env, "")
    elif auth.keys_file is not None:
        place = f"the file {auth.keys_file} (auth.keys_file)"
        text = _read(auth.keys_file, place)
    else:
        return None
    keys = [key for line in text.splitlines() for key in (part.strip() for part in line.split(",")) if key]
    if not keys:
        raise ValueError(f"{place} holds no key, and without one nobody could call")
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ValueError(f"{place} holds a key that no header can carry; they are of printable ASCII")
    return Keys(keys)


def _read(path: Path, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # A decoding error would show the bytes that it stumbled over.
        raise ValueError(f"{place} cannot be read: {type(error).__name__}") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

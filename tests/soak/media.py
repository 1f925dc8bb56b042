"""What the traffic sends: good media with the rows that a calm service gives for them, and bad ones.

Bytes can be made new without changing what is decoded, so that a cache has to miss.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Modality
from tests.media.clips import film
from tests.odd_media import Refused, photo, picture, refused, speechlike, wav

Rows = npt.NDArray[np.generic]

SIZES = ((64, 64), (224, 224), (320, 240), (500, 333), (640, 480), (96, 900), (1024, 768))
SECONDS = (0.5, 3.0, 8.0, 29.0)
FRAMES = (4, 9)
# Rows differ by the pack that they shared: at most by the rounding of their type. Another item's are far off.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Media that must be encoded."""

    modality: Modality
    data: bytes

    def renewed(self, rng: random.Random) -> bytes:
        """Bytes that nobody has sent before, of the same picture or sound."""
        note = rng.randbytes(12).hex().encode()
        if self.data.startswith(b"\xff\xd8"):
            comment = b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note
            return self.data[:2] + comment + self.data[2:]
        if self.data.startswith(b"RIFF"):
            size = int.from_bytes(self.data[4:8], "little") + 8 + len(note)
            chunk = b"note" + len(note).to_bytes(4, "little") + note
            return b"RIFF" + size.to_bytes(4, "little") + self.data[8:] + chunk
        return self.data + (8 + len(note)).to_bytes(4, "big") + b"free" + note


@cache
def samples(modality: Modality) -> tuple[Sample, ...]:
    """Of all sizes that a service with default limits takes."""
    if modality is Modality.IMAGE:
        made = [picture("JPEG", photo(*size, seed), quality=90) for seed, size in enumerate(SIZES)]
    elif modality is Modality.AUDIO:
        made = [wav(speechlike(seconds)) for seconds in SECONDS]
    else:
        made = [film(_frames(count)) for count in FRAMES]
    return tuple(Sample(modality, data) for data in made)


def bad(modality: Modality) -> tuple[Refused, ...]:
    """Media that must be refused, each with its status and code; small ones."""
    return tuple(each for each in refused() if each.modality is modality and len(each.data) < 1 << 20)


def same_rows(rows: Rows, reference: Rows) -> bool:
    """Whether these are the rows of that item."""
    if rows.shape != reference.shape:
        return False
    ours, theirs = rows.astype(np.float32), reference.astype(np.float32)
    return bool(np.linalg.norm(ours - theirs) <= TOLERANCE * np.linalg.norm(theirs))


def _frames(count: int) -> npt.NDArray[np.uint8]:
    return np.stack([photo(160, 128, seed) for seed in range(count)])

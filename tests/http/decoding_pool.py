"""A pool that decodes what it is given with the real decoders, and makes up the embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from encoder_pool.config import LimitsConfig, PoolConfig
from encoder_pool.core import Media, Modality
from encoder_pool.http.service import Encoded, Sharing
from encoder_pool.media.audio import decode_audio
from encoder_pool.media.image import decode_image
from encoder_pool.media.video import Clip, Selection, decode_video
from tests.http.fake_pool import FakePool

SAMPLE_RATE = 16_000


class DecodingPool(FakePool):
    def __init__(self, config: PoolConfig | None = None) -> None:
        super().__init__(config)
        self.modalities = frozenset(Modality)

    async def encode(
        self,
        media: Sequence[Media],
        reservation: Any,
        deadline_s: float,
        sharing: Sharing = Sharing.NEVER,
    ) -> Encoded:
        self.calls.clear()
        for one in media:
            await asyncio.to_thread(decode, one, self.config.limits)
        return await super().encode(media, reservation, deadline_s, sharing)


def decode(media: Media, limits: LimitsConfig) -> None:
    """Decode an item as it says it is, within its limits. Raises PoolError."""
    if media.modality is Modality.IMAGE:
        image, _ = decode_image(media, limits)
        assert image.width * image.height <= limits.max_image_pixels
    elif media.modality is Modality.AUDIO:
        samples, _ = decode_audio(media, limits, SAMPLE_RATE)
        assert np.abs(samples).max() <= 1
        assert samples.size <= (limits.max_audio_seconds + 1) * SAMPLE_RATE
    else:
        frames, _ = decode_video(media, limits, _every_frame)
        assert 0 < len(frames) <= limits.max_video_frames


def _every_frame(clip: Clip) -> Selection:
    return Selection(np.arange(clip.frames), (*clip.size, 3), lambda pixels: pixels)

"""Whisper audio towers, the replica's half. One sequence is one window of 30 seconds.

A clip is cut into windows, the last one padded with zeros. Of the windows' output rows a caller gets the
first `tokens`: those that begin within the clip, one per 20 ms. The rows after them describe the zeros
that padding added; they say nothing of the clip, and a language model would pay for 1500 tokens however
short the clip is. Attention does reach the padding, as it does in Whisper, which has no mask: the rows
that are returned are those of the stock encoder. Samples travel as float32; the log-mel spectrogram is
computed in the tower (`whisper_tower`). Imports no torch.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import PositiveInt

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Grid, Media, Modality, PreparedItem
from encoder_pool.media.audio import decode_audio
from encoder_pool.media.source import digest
from encoder_pool.towers.checkpoint import CheckpointFile, read
from encoder_pool.towers.dense import DenseAdapter, SequenceShape

if TYPE_CHECKING:
    from encoder_pool.towers.adapter import Tower

# The second of the encoder's two convolutions halves the frames.
_FRAMES_PER_ROW = 2


class WhisperConfig(CheckpointFile):
    """What is needed of config.json."""

    model_type: Literal["whisper"]
    d_model: PositiveInt
    num_mel_bins: PositiveInt
    max_source_positions: PositiveInt


class FeatureExtractorConfig(CheckpointFile):
    """What is needed of preprocessor_config.json, as WhisperFeatureExtractor writes it.

    sampling_rate  samples a second
    hop_length     samples between two mel frames
    chunk_length   seconds of a window
    n_fft          samples of a Fourier transform
    feature_size   mel bins
    """

    sampling_rate: PositiveInt
    hop_length: PositiveInt
    chunk_length: PositiveInt
    n_fft: PositiveInt
    feature_size: PositiveInt

    @property
    def window_samples(self) -> int:
        """Samples of a window."""
        return self.chunk_length * self.sampling_rate


class WhisperAdapter(DenseAdapter):
    """Audio clips to (samples / 320, d_model) rows of the encoder's last hidden state."""

    modalities = frozenset({Modality.AUDIO})
    unit = "windows"
    prefix = 0

    def __init__(self, checkpoint: Path) -> None:
        config = read(checkpoint, "config.json", WhisperConfig)
        self._extractor = read(checkpoint, "preprocessor_config.json", FeatureExtractorConfig)
        self._checkpoint = checkpoint
        _check_match(config, self._extractor)
        self._samples_per_token = self._extractor.hop_length * _FRAMES_PER_ROW
        self.width = config.d_model
        self.sequence = SequenceShape(
            data=(self._extractor.window_samples,),
            dtype=np.dtype(np.float32),
            patch_rows=config.max_source_positions * _FRAMES_PER_ROW,
            out_rows=config.max_source_positions,
        )

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        """Decode a clip to float32 (windows, samples), mono. Raises as `decode_audio` does."""
        self.check_modality(media)
        samples, source = decode_audio(media, limits, self._extractor.sampling_rate)
        window = self._extractor.window_samples
        windows = -(-len(samples) // window)
        tokens = -(-len(samples) // self._samples_per_token)
        data = np.zeros((windows, window), np.float32)
        data.reshape(-1)[: len(samples)] = samples
        return PreparedItem(
            modality=media.modality,
            data=data,
            grid=Grid(1, 1, tokens),
            cost=self.sequence.cost(windows),
            tokens=tokens,
            digest=digest(media.data),
            source=source,
        )

    def largest(self, limits: LimitsConfig) -> int:
        """As many short clips as a request may have, or the windows of the longest. See BoundsItems."""
        return max(super().largest(limits), ceil(limits.max_audio_seconds / self._extractor.chunk_length))

    def load(self, model: ModelConfig) -> Tower:
        """The stock WhisperEncoder behind the spectrogram. Raises ValueError if the weights do not fit."""
        from encoder_pool.towers.dense_tower import DenseTower
        from encoder_pool.towers.whisper_tower import SampleEncoder

        encoder = SampleEncoder(self._checkpoint, self._extractor, model)
        return DenseTower("samples", self.sequence, encoder, Grid(1, 1, self.sequence.out_rows))


def _check_match(config: WhisperConfig, extractor: FeatureExtractorConfig) -> None:
    frames, wanted = (
        extractor.window_samples // extractor.hop_length,
        config.max_source_positions * _FRAMES_PER_ROW,
    )
    if frames != wanted:
        raise ValueError(
            f"model.checkpoint: preprocessor_config.json makes {frames} mel frames a window, but "
            f"config.json has max_source_positions {config.max_source_positions}, which take {wanted}"
        )
    if extractor.feature_size != config.num_mel_bins:
        raise ValueError(
            f"model.checkpoint: preprocessor_config.json has feature_size {extractor.feature_size}, but "
            f"config.json has num_mel_bins {config.num_mel_bins}"
        )

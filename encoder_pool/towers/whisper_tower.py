"""Whisper, the shard's half: float32 samples -> log-mel spectrogram -> stock transformers WhisperEncoder.

The spectrogram is that of transformers' WhisperFeatureExtractor, window by window: periodic Hann,
reflected edges, Slaney mel filters, log10, at most 8 below the window's own maximum, scaled. It is
computed in float32 whatever the encoder's type. B windows, S samples, M mel bins, F frames.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers.audio_utils import mel_filter_bank
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from encoder_pool.config import ModelConfig
from encoder_pool.towers.loading import Part, load_model
from encoder_pool.towers.whisper import FeatureExtractorConfig

# WhisperFeatureExtractor's constants.
_MAX_HZ = 8000.0
_LEAST_POWER = 1e-10
_DYNAMIC_RANGE = 8.0

ENCODER = Part(prefix=r"(model\.)?encoder\.", ignored=("model.decoder.", "decoder.", "proj_out."))


class LogMel(nn.Module):
    """(B, S) float32 samples -> (B, M, F) float32."""

    hann: torch.Tensor
    filters: torch.Tensor

    def __init__(self, extractor: FeatureExtractorConfig, device: str) -> None:
        super().__init__()
        self._n_fft = extractor.n_fft
        self._hop = extractor.hop_length
        filters = mel_filter_bank(
            num_frequency_bins=1 + extractor.n_fft // 2,
            num_mel_filters=extractor.feature_size,
            min_frequency=0.0,
            max_frequency=_MAX_HZ,
            sampling_rate=extractor.sampling_rate,
            norm="slaney",
            mel_scale="slaney",
        )
        self.register_buffer("filters", torch.from_numpy(filters.T).to(device, torch.float32))
        self.register_buffer("hann", torch.hann_window(extractor.n_fft, device=device))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """The spectrogram; frame f is centred on sample f * hop."""
        spectrum = torch.stft(samples, self._n_fft, self._hop, window=self.hann, return_complex=True)
        # The frame centred on the window's end is dropped. Contiguous, since the product is slow otherwise.
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        decades = (self.filters @ power).clamp(min=_LEAST_POWER).log10()
        floor = decades.amax(dim=(1, 2), keepdim=True) - _DYNAMIC_RANGE
        return (torch.maximum(decades, floor) + 4.0) / 4.0


class SampleEncoder(nn.Module):
    """(B, S) float32 -> (B, F / 2, d_model). Raises ValueError if the weights do not fit."""

    def __init__(self, checkpoint: Path, extractor: FeatureExtractorConfig, model: ModelConfig) -> None:
        super().__init__()
        self.log_mel = LogMel(extractor, model.device)
        self.model = load_model(WhisperEncoder, checkpoint, model, ENCODER)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """The encoder's last hidden state of the windows."""
        features = self.log_mel(samples).to(self.model.conv1.weight.dtype)
        hidden: torch.Tensor = self.model(features).last_hidden_state
        return hidden

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL.Image import Resampling
from transformers import Dinov2Config, Dinov2Model, WhisperConfig, WhisperFeatureExtractor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from encoder_pool.towers.dinov2 import Dinov2Adapter
from encoder_pool.towers.whisper import WhisperAdapter
from encoder_pool.weights import ensure

from .cases import Case, model_config, randomised


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on two busy cores wait for each other more than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def vit_s14() -> Case[Dinov2Adapter]:
    folder = ensure("builtin:vit-s14")
    adapter = Dinov2Adapter(folder)
    return Case(folder, adapter, adapter.load(model_config()))


@pytest.fixture(scope="session")
def tiny_dinov2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random DINOv2 with 5 x 5 positions that is fed 4 x 4 patches, as transformers saves it."""
    folder = tmp_path_factory.mktemp("tiny-dinov2")
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=70, patch_size=14
    )
    randomised(Dinov2Model(config)).save_pretrained(folder)
    BitImageProcessorPil(
        size={"shortest_edge": 64},
        crop_size={"height": 56, "width": 56},
        resample=Resampling.BICUBIC,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_dinov2(tiny_dinov2_folder: Path) -> Case[Dinov2Adapter]:
    adapter = Dinov2Adapter(tiny_dinov2_folder)
    return Case(tiny_dinov2_folder, adapter, adapter.load(model_config()))


@pytest.fixture(scope="session")
def whisper_tiny_en() -> Case[WhisperAdapter]:
    folder = ensure("builtin:whisper-tiny.en")
    adapter = WhisperAdapter(folder)
    return Case(folder, adapter, adapter.load(model_config()))


@pytest.fixture(scope="session")
def tiny_whisper_config() -> WhisperConfig:
    """One second a window: 100 mel frames, 50 rows."""
    return WhisperConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        num_mel_bins=16,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
    )


@pytest.fixture(scope="session")
def tiny_whisper_folder(tmp_path_factory: pytest.TempPathFactory, tiny_whisper_config: WhisperConfig) -> Path:
    """A random Whisper encoder, as transformers saves it."""
    folder = tmp_path_factory.mktemp("tiny-whisper")
    randomised(WhisperEncoder(tiny_whisper_config)).save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    extractor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_whisper(tiny_whisper_folder: Path) -> Case[WhisperAdapter]:
    adapter = WhisperAdapter(tiny_whisper_folder)
    return Case(tiny_whisper_folder, adapter, adapter.load(model_config()))

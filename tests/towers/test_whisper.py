from __future__ import annotations

import io
import json
import shutil
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, DType, Grid, Media, Modality, PreparedItem
from encoder_pool.errors import UnsupportedMedia
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.whisper import FeatureExtractorConfig, WhisperAdapter
from encoder_pool.towers.whisper_tower import LogMel

from .cases import Case, assert_close, assert_packing_changes_nothing, model_config, nan_after, run, staged

RATE = 16000
WINDOW = 30 * RATE
CASES = ["whisper_tiny_en", "tiny_whisper"]
Samples = npt.NDArray[np.float32]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case[WhisperAdapter]:
    found: Case[WhisperAdapter] = request.getfixturevalue(request.param)
    return found


def hum(seconds: float, seed: int = 0) -> Samples:
    """A chord with noise on it, as 16-bit sound holds it."""
    time = np.arange(round(seconds * RATE)) / RATE
    sound = sum(np.sin(2 * np.pi * hertz * time) / 8 for hertz in (110 + seed, 440, 2700))
    sound = sound + np.random.default_rng(seed).normal(0, 0.02, len(time))
    return (np.round(sound * 32767) / 32768).astype(np.float32)


def wav(samples: Samples) -> Media:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32768).astype("<i2").tobytes())
    return Media(Modality.AUDIO, buffer.getvalue(), "input[0]")


def prepared(case: Case[WhisperAdapter], samples: Samples) -> PreparedItem:
    return case.adapter.prepare(wav(samples), LimitsConfig())


def noise(case: Case[WhisperAdapter], items: int) -> list[StagedItem]:
    (window,) = case.adapter.sequence.data
    generator = torch.Generator().manual_seed(1)
    grid = case.tower.fill(case.adapter.capacity(1))[0]
    return [StagedItem(torch.randn(1, window, generator=generator) / 10, grid) for _ in range(items)]


def reference_features(folder: Path, windows: Samples) -> torch.Tensor:
    """WhisperFeatureExtractor's input_features of (windows, samples), each on its own."""
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = [extractor(window, sampling_rate=RATE, return_tensors="pt") for window in windows]
    return torch.cat([feature["input_features"] for feature in features])


def reference_rows(folder: Path, features: torch.Tensor) -> torch.Tensor:
    """The stock encoder's last hidden state as rows."""
    model: torch.nn.Module = WhisperEncoder.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows: torch.Tensor = model.eval()(features).last_hidden_state.flatten(0, 1)
    return rows


def log_mel(folder: Path, windows: Samples) -> torch.Tensor:
    text = (folder / "preprocessor_config.json").read_text()
    features: torch.Tensor = LogMel(FeatureExtractorConfig.model_validate_json(text), "cpu")(
        torch.from_numpy(windows)
    )
    return features


def windows_of(samples: Samples) -> Samples:
    """The samples padded with zeros to whole windows of 30 s."""
    count = -(-len(samples) // WINDOW)
    return np.pad(samples, (0, count * WINDOW - len(samples))).reshape(count, WINDOW)


def test_shapes_come_from_the_checkpoint(whisper_tiny_en: Case[WhisperAdapter]) -> None:
    adapter = whisper_tiny_en.adapter
    assert (adapter.width, adapter.prefix, adapter.unit) == (384, 0, "windows")
    assert adapter.capacity(3) == Cost(patch_rows=9000, out_rows=4500, sequences=3)
    assert adapter.input_bytes(adapter.capacity(3)) == 3 * WINDOW * 4


@pytest.mark.parametrize(
    ("samples", "windows", "tokens"),
    [(1600, 1, 5), (1601, 1, 6), (WINDOW, 1, 1500), (WINDOW + 1, 2, 1501), (44 * RATE, 2, 2200)],
)
def test_a_clip_becomes_whole_windows_and_one_token_per_20_ms(
    whisper_tiny_en: Case[WhisperAdapter], samples: int, windows: int, tokens: int
) -> None:
    sound = hum(samples / RATE)
    item = prepared(whisper_tiny_en, sound)
    assert item.data.shape == (windows, WINDOW)
    assert item.data.dtype == np.float32
    assert np.array_equal(item.data.ravel()[:samples], sound)
    assert not item.data.ravel()[samples:].any()
    assert (item.tokens, item.grid) == (tokens, Grid(1, 1, tokens))
    assert item.cost == whisper_tiny_en.adapter.capacity(windows)


@pytest.mark.parametrize(
    "sound",
    [
        np.random.default_rng(0).normal(0, 0.1, WINDOW).astype(np.float32),
        np.zeros(WINDOW, np.float32),
        hum(0.3),
        hum(30),
        hum(44),
    ],
    ids=["noise", "silence", "short", "30s", "44s"],
)
def test_the_spectrogram_is_the_reference_bit_for_bit(
    whisper_tiny_en: Case[WhisperAdapter], sound: Samples
) -> None:
    windows = windows_of(sound)
    features = log_mel(whisper_tiny_en.folder, windows)
    assert features.shape == (len(windows), 80, 3000)
    assert torch.equal(features, reference_features(whisper_tiny_en.folder, windows))


@pytest.mark.parametrize(("name", "seconds"), [("whisper_tiny_en", 44.0), ("tiny_whisper", 1.4)])
def test_a_clip_of_two_windows_equals_the_stock_encoder_from_sound_to_rows(
    request: pytest.FixtureRequest, name: str, seconds: float
) -> None:
    case: Case[WhisperAdapter] = request.getfixturevalue(name)
    item = prepared(case, hum(seconds))
    assert item.cost.sequences == 2
    rows = run(case.tower, [staged(item)])
    reference = reference_rows(case.folder, reference_features(case.folder, item.data.astype(np.float32)))
    assert_close(rows, reference)


def test_an_item_does_not_depend_on_its_batch(case: Case[WhisperAdapter]) -> None:
    assert_packing_changes_nothing(case.tower, noise(case, 4))


def test_nan_in_the_padding_reaches_no_real_row(case: Case[WhisperAdapter]) -> None:
    items = noise(case, 2)
    reference = run(case.tower, items[:1])
    items[1].data.fill_(float("nan"))
    rows = run(case.tower, items)
    assert rows[len(reference) :].isnan().all()
    assert_close(rows[: len(reference)], reference)


def test_nan_behind_the_convolutions_reaches_no_real_row(tiny_whisper: Case[WhisperAdapter]) -> None:
    items = noise(tiny_whisper, 4)
    encoder = tiny_whisper.tower.encode  # type: ignore[attr-defined]
    with nan_after(encoder.model.conv2, real=2):
        rows = run(tiny_whisper.tower, items)
    assert_close(rows[:100], run(tiny_whisper.tower, items[:2]))


def test_the_captured_region_never_waits_for_the_device(tiny_whisper: Case[WhisperAdapter]) -> None:
    inputs = tiny_whisper.tower.stage(noise(tiny_whisper, 2))
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows = tiny_whisper.tower.forward(inputs, {})
    assert rows.shape == (2 * 50, 32)


def test_half_precision_gives_half_precision_rows(tiny_whisper: Case[WhisperAdapter]) -> None:
    items = noise(tiny_whisper, 2)
    rows = run(tiny_whisper.adapter.load(model_config(DType.BFLOAT16)), items)
    assert rows.dtype == torch.bfloat16
    reference = run(tiny_whisper.tower, items)
    # bfloat16 has 8 bits of mantissa: half a percent per operation.
    assert (rows.float() - reference).abs().max() < 0.05 * reference.abs().max()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("chunk_length", 2, "makes 200 mel frames a window, .* max_source_positions 50, which take 100"),
        ("feature_size", 20, "has feature_size 20, .* num_mel_bins 16"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    tiny_whisper_folder: Path, tmp_path: Path, key: str, value: int, message: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(tiny_whisper_folder, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=message):
        WhisperAdapter(folder)


def test_another_model_type_is_refused(tiny_dinov2_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json: key 'model_type'"):
        WhisperAdapter(tiny_dinov2_folder)


def test_the_largest_item_is_the_longest_clip_if_that_is_more_than_a_request_of_short_ones(
    tiny_whisper: Case[WhisperAdapter],
) -> None:
    largest = tiny_whisper.adapter.largest
    assert largest(LimitsConfig(max_audio_seconds=3.5, max_items=3)) == 4
    assert largest(LimitsConfig(max_audio_seconds=3.0, max_items=5)) == 5


def test_an_image_is_unsupported(tiny_whisper: Case[WhisperAdapter]) -> None:
    with pytest.raises(UnsupportedMedia, match="takes audio"):
        tiny_whisper.adapter.prepare(Media(Modality.IMAGE, b"RIFF", "input[0]"), LimitsConfig())

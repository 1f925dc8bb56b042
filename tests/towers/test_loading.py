from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Dinov2Model, WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from encoder_pool.core import DType
from encoder_pool.towers.loading import load_model
from encoder_pool.towers.whisper_tower import ENCODER

from .cases import model_config, randomised

Tensors = dict[str, torch.Tensor]


def changed(folder: Path, to: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of the checkpoint with its tensors changed."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def load(folder: Path) -> Dinov2Model:
    return load_model(Dinov2Model, folder, model_config())


def test_a_loaded_model_is_frozen_and_evaluates(tiny_dinov2_folder: Path) -> None:
    model = load(tiny_dinov2_folder)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_dtype_is_that_of_the_configuration(tiny_dinov2_folder: Path) -> None:
    model = load_model(Dinov2Model, tiny_dinov2_folder, model_config(DType.BFLOAT16))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_missing_weight_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    folder = changed(tiny_dinov2_folder, tmp_path / "c", lambda tensors: tensors.pop("layernorm.bias"))
    with pytest.raises(ValueError, match=r"lacks the weights layernorm\.bias \(as Dinov2Model\)"):
        load(folder)


def test_an_unexpected_weight_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    folder = changed(tiny_dinov2_folder, tmp_path / "c", lambda tensors: tensors.update(stray=torch.zeros(1)))
    with pytest.raises(ValueError, match="has the unexpected weights stray"):
        load(folder)


def test_a_quantised_weight_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    def quantise(tensors: Tensors) -> None:
        tensors["layernorm.bias"] = tensors["layernorm.bias"].to(torch.int8)

    folder = changed(tiny_dinov2_folder, tmp_path / "c", quantise)
    with pytest.raises(ValueError, match=r"has layernorm\.bias in I8; weights must be BF16"):
        load(folder)


def test_a_weight_of_another_shape_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    other = {"layernorm.bias": torch.zeros(3)}
    folder = changed(tiny_dinov2_folder, tmp_path / "c", lambda tensors: tensors.update(other))
    with pytest.raises(ValueError, match=r"another shape than config\.json says: layernorm\.bias"):
        load(folder)


def test_many_missing_weights_are_summed_up(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    def keep_one(tensors: Tensors) -> None:
        for name in list(tensors)[1:]:
            del tensors[name]

    with pytest.raises(ValueError, match=r"lacks the weights \S+, \S+, \S+ and \d+ more"):
        load(changed(tiny_dinov2_folder, tmp_path / "c", keep_one))


def test_a_pickle_is_never_read(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_dinov2_folder / "config.json", tmp_path)
    torch.save(load_file(tiny_dinov2_folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load(tmp_path)


def test_an_encoder_is_taken_out_of_a_whole_models_checkpoint(
    tiny_whisper_config: WhisperConfig, tmp_path: Path
) -> None:
    whole = randomised(WhisperForConditionalGeneration(tiny_whisper_config))
    whole.save_pretrained(tmp_path)
    encoder = load_model(WhisperEncoder, tmp_path, model_config(), ENCODER)
    expected = whole.model.encoder.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in encoder.state_dict().items())


def test_a_whole_model_without_a_piece_of_its_encoder_is_refused(
    tiny_whisper_config: WhisperConfig, tmp_path: Path
) -> None:
    WhisperForConditionalGeneration(tiny_whisper_config).save_pretrained(tmp_path / "whole")
    folder = changed(
        tmp_path / "whole", tmp_path / "c", lambda tensors: tensors.pop("model.encoder.conv1.bias")
    )
    with pytest.raises(ValueError, match=r"lacks the weights conv1\.bias"):
        load_model(WhisperEncoder, folder, model_config(), ENCODER)


def test_dummy_weights_need_nothing_but_a_configuration(tiny_whisper_folder: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_whisper_folder / "config.json", tmp_path)
    model = model_config(load_format="dummy")
    encoder = load_model(WhisperEncoder, tmp_path, model, ENCODER)
    stock = load_model(WhisperEncoder, tiny_whisper_folder, model_config(), ENCODER)
    expected = {name: tensor.shape for name, tensor in stock.state_dict().items()}
    assert {name: tensor.shape for name, tensor in encoder.state_dict().items()} == expected

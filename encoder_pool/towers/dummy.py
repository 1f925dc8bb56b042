"""Random weights at a model's true size, to measure with where there is no checkpoint.

They are the same in every process on one kind of device, and of a scale at which outputs are finite and of
order one at any depth, in bfloat16 too. Nothing is zero, so that no part of the model is left out unnoticed.
Built on the device and in the type: no weight ever lies on the host or in float32 on its way.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from encoder_pool.config import ModelConfig

_SEED = 0
_BIAS = 0.02

Model = TypeVar("Model", bound=nn.Module)


def build_dummy(kind: type[Model], config: Any, model: ModelConfig) -> Model:
    """The stock model of this class and configuration, frozen, in evaluation mode."""
    with torch.device(model.device):
        built: Model = kind._from_config(  # type: ignore[attr-defined]
            config, dtype=getattr(torch, model.dtype.value), attn_implementation="sdpa"
        )
    generator = torch.Generator(model.device).manual_seed(_SEED)
    with torch.no_grad():
        for module in built.modules():
            for name, parameter in module.named_parameters(recurse=False):
                _fill(module, name, parameter, generator)
    return built.eval().requires_grad_(False)


def _fill(module: nn.Module, name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Products keep the variance of their input, norms are one, biases are small, tables are of order one."""
    if name.endswith("bias"):
        parameter.normal_(std=_BIAS, generator=generator)
    elif parameter.ndim == 1:
        parameter.fill_(1.0)
    elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
    else:
        parameter.normal_(generator=generator)

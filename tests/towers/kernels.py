"""Kernels of attention, for the tests that are about them."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from encoder_pool.towers.attention import KERNELS


def gpu_attention() -> ModuleType:
    """The module. Where there is no GPU, nobody who tries all kernels shall find those it registers."""
    known = set(KERNELS)
    module = importlib.import_module("encoder_pool.towers.gpu_attention")
    if not torch.cuda.is_available():
        for name in set(KERNELS) - known:
            del KERNELS[name]
    return module

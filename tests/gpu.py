"""Marks of a test that needs a GPU: `pytestmark = NEEDS_GPU`, or `@needs_gpu` for one test of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda finds no NVIDIA GPU"),
]

Test = TypeVar("Test", bound=Callable[..., object])


def needs_gpu(test: Test) -> Test:
    for mark in NEEDS_GPU:
        test = mark(test)
    return test

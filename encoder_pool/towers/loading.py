"""Loads a stock transformers model from a local checkpoint, and refuses anything but an exact fit.

transformers fills missing weights with random numbers and only logs it; here that is an error, unless dummy
weights are asked for. Never reads from the network and never unpickles: weights are safetensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging

from encoder_pool.config import ModelConfig
from encoder_pool.towers.dummy import build_dummy

_SHOWN = 3
FLOATS = ("BF16", "F16", "F32", "F64")
"""Types of weights, as safetensors names them."""


class Part(NamedTuple):
    """Where a tower lies in the checkpoint of a whole model.

    prefix   regular expression of what precedes the tower's own names
    ignored  how the names of weights begin that belong to the rest of the model
    """

    prefix: str
    ignored: tuple[str, ...]


Model = TypeVar("Model", bound=nn.Module)


def load_model(kind: type[Model], folder: Path, model: ModelConfig, part: Part | None = None) -> Model:
    """The model of this class, frozen, in evaluation mode, out of its own or a whole model's checkpoint.

    Raises ValueError if the folder has no safetensors, or if a weight is missing, unexpected, of another
    shape, or not of a floating point type.
    """
    if model.load_format == "dummy":
        return build_dummy(kind, read_config(folder), model)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ValueError(f"model.checkpoint has no model.safetensors: {folder}")
    loaded = load_exactly(
        kind,
        folder,
        model,
        ignored=() if part is None else part.ignored,
        pretrained_model_name_or_path=folder,
        local_files_only=True,
        use_safetensors=True,
        key_mapping=None if part is None else {f"^{part.prefix}": ""},
    )
    for path in files:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            check_types(file, (n for n in names if part is None or not n.startswith(part.ignored)), path)
    return loaded


def check_types(file: Any, names: Iterable[str], path: Path) -> None:
    """Raise ValueError if a tensor of an open safetensors file is quantised: cast as it is, it is garbage."""
    for name in names:
        kind = file.get_slice(name).get_dtype()
        if kind not in FLOATS:
            raise ValueError(
                f"model.checkpoint: {path} has {name} in {kind}; weights must be {', '.join(FLOATS)}"
            )


def read_config(folder: Path) -> Any:
    """The stock configuration of a checkpoint."""
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_exactly(
    kind: type[Model], folder: Path, model: ModelConfig, ignored: tuple[str, ...] = (), **source: Any
) -> Model:
    """What the class's own `from_pretrained` makes of the source, frozen, in evaluation mode.

    Raises ValueError, naming the folder, if a weight is missing, of another shape, or unexpected (unless its
    name begins with one of the ignored).
    """
    with _quiet():
        loaded, report = kind.from_pretrained(  # type: ignore[attr-defined]
            dtype=getattr(torch, model.dtype.value),
            attn_implementation="sdpa",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **source,
        )
    problems = {
        "lacks the weights": report["missing_keys"],
        "has the unexpected weights": [k for k in report["unexpected_keys"] if not k.startswith(ignored)],
        "has weights of another shape than config.json says:": [key[0] for key in report["mismatched_keys"]],
    }
    for problem, keys in problems.items():
        if keys:
            raise ValueError(f"model.checkpoint {folder} {problem} {some(keys)} (as {kind.__name__})")
    frozen: Model = loaded.eval().requires_grad_(False).to(model.device)
    return frozen


def bytes_of(*modules: nn.Module) -> int:
    """Bytes of the weights and buffers of modules that share none."""
    return sum(tensor.nbytes for module in modules for tensor in (*module.parameters(), *module.buffers()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' bar and report: what matters of them is an error here, the rest is noise."""
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def some(keys: Iterable[str]) -> str:
    """A few of the names, in a stable order."""
    names = sorted(keys)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

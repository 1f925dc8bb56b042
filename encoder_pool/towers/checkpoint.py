"""The JSON files of a checkpoint folder, read into typed models.

A family declares the keys it needs as fields of a `CheckpointFile`; all other keys are ignored, and a
missing or unexpected value is a ValueError that names the file and the key. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError


class CheckpointFile(BaseModel):
    """The keys of one JSON file that a family needs."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


File = TypeVar("File", bound=CheckpointFile)


def read(folder: Path, name: str, kind: type[File]) -> File:
    """The file `name` of the checkpoint. Raises ValueError if it is missing or not what `kind` needs."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"model.checkpoint has no {name}: {path} does not exist")
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"model.checkpoint: {path}: key '{key}': {first['msg']}") from error

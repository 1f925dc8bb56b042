"""Multimodal encoders as a pool of their own: Ray Serve, token-budget batching, captured towers.

Importing the package is cheap: neither torch nor Ray comes with it.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encoder_pool.builder import build_app
    from encoder_pool.client import AsyncEncoderClient, EncoderClient
    from encoder_pool.config import PoolConfig
    from encoder_pool.handle import PoolHandle

__all__ = ["AsyncEncoderClient", "EncoderClient", "PoolConfig", "PoolHandle", "build_app"]
__version__ = version("encoder-pool")

_HOMES = {
    "AsyncEncoderClient": "encoder_pool.client",
    "EncoderClient": "encoder_pool.client",
    "PoolConfig": "encoder_pool.config",
    "PoolHandle": "encoder_pool.handle",
    "build_app": "encoder_pool.builder",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'encoder_pool' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)

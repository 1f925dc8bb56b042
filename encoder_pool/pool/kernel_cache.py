"""Where kernels that are compiled when a shard starts are kept for the next start.

FlashAttention 4 compiles for seconds what it has not met in this process, unless it is told to keep it;
Triton keeps its own. Both tell by their sources and versions whether what they find is theirs. Imports
neither.
"""

from __future__ import annotations

import os

from encoder_pool.weights import cache as weights_cache

FOLDER = "flash4"
"""In the folder of the weights' cache, which nobody else writes to: what lies there is run."""


def keep_kernels() -> None:
    """Call it before they are imported; variables of theirs that are set already stay."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(weights_cache.location() / FOLDER))

"""Where kernels that are compiled when a shard starts are kept for the next start.

FlashAttention 4 compiles for seconds what it has not met in this process, unless it is told to keep it;
Triton keeps its own. Both tell by their sources and versions whether what they find is theirs. Imports
neither.
"""

from __future__ import annotations

import logging
import os
import stat

from encoder_pool.weights import cache as weights_cache

logger = logging.getLogger(__name__)

FOLDER = "flash4"
"""In the folder of the weights' cache. What lies in it is run."""
ENABLED, PLACE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def keep_kernels() -> None:
    """Call it before they are imported; variables of theirs that are set already stay.

    Nothing is kept where the folder cannot be made, or where others than this user can write to it.
    """
    if ENABLED in os.environ:
        return
    folder = weights_cache.location() / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        logger.warning("compiled kernels are not kept: %s", error)
        return
    if found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        logger.warning("compiled kernels are not kept: others than this user can write to %s", folder)
        return
    os.environ[ENABLED] = "1"
    os.environ.setdefault(PLACE, str(folder))

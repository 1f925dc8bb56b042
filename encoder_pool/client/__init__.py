"""The Python client of a pool: `EncoderClient` for threads, `AsyncEncoderClient` for asyncio.

Needs neither torch nor Ray.
"""

from encoder_pool.client.async_client import AsyncEncoderClient
from encoder_pool.client.errors import (
    BadRequestError,
    ConnectionFailedError,
    DeadlineExceededError,
    EncodeFailedError,
    EncoderError,
    InvalidReplyError,
    NotFoundError,
    OverloadedError,
    RequestTimeoutError,
    ServerFailedError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UndecodableMediaError,
    UnsupportedMediaError,
)
from encoder_pool.client.inputs import Input
from encoder_pool.client.reply import EncodedItem
from encoder_pool.client.sync_client import EncoderClient

__all__ = [
    "AsyncEncoderClient",
    "BadRequestError",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "EncodeFailedError",
    "EncodedItem",
    "EncoderClient",
    "EncoderError",
    "Input",
    "InvalidReplyError",
    "NotFoundError",
    "OverloadedError",
    "RequestTimeoutError",
    "ServerFailedError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "UndecodableMediaError",
    "UnsupportedMediaError",
]

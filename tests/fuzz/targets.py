"""What is fuzzed: functions of bytes that return whatever the bytes are, or raise for a finding.

parser   a body of any accepted type -> items
uri      a data URI, or bare base64 -> bytes
image, audio, video
         the decoders, on the bytes as they are and again with their checksums set right
app      a whole request to the ASGI application over a pool that decodes with the real decoders

An answer is right if it is a success or a 4xx; running too long and taking too much memory is for the fuzzer
to see. Limits are small, so that what exceeds them is found with few bytes in little time.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable

from starlette.types import Message, Scope

from encoder_pool.auth import Keys
from encoder_pool.config import LimitsConfig, QueueConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError
from encoder_pool.http.parse import check_content_type, parse
from encoder_pool.http.routes import build_app
from encoder_pool.media.source import decode_base64, decode_data_uri
from tests.http.decoding_pool import DecodingPool, decode
from tests.http.fake_pool import fake_config

LIMITS = LimitsConfig(
    max_body_bytes=1 << 20,
    max_items=4,
    max_item_bytes=1 << 19,
    max_image_pixels=1_000_000,
    min_image_side=1,
    max_audio_seconds=20.0,
    max_video_seconds=60.0,
    max_video_frames=100,
    max_frame_pixels=200_000,
    max_video_pixels=10_000_000,
    max_decode_seconds=5.0,
)
CONTENT_TYPES = (
    "application/json",
    "multipart/form-data; boundary=x",
    "image/png",
    "audio/wav",
    "video/mp4",
    'multipart/form-data; boundary="a b"',
    "multipart/form-data",
    "text/plain",
)
HEAD = 8
"""The first bytes of an input of `parser` and `app`, which choose all that is not the body."""
KEY = "fuzz"


POOL = DecodingPool(fake_config(LIMITS, QueueConfig(deadline_s=600)))
APPS = (build_app(POOL), build_app(POOL, keys=Keys([KEY])))


def fuzz_parser(data: bytes) -> None:
    """The first byte chooses the content type."""
    content_type = CONTENT_TYPES[data[0] % len(CONTENT_TYPES)] if data else ""

    def run() -> None:
        check_content_type(content_type)
        parse([data[HEAD:]], content_type, {"model": "fake"}, POOL)

    expect_4xx(run)


def fuzz_uri(data: bytes) -> None:
    """As UTF-8 where it is, else as latin-1."""
    text = data.decode("utf-8") if _is_utf8(data) else data.decode("latin-1")
    expect_4xx(lambda: decode_data_uri(text, "p"))
    expect_4xx(lambda: decode_data_uri(f"data:{text}", "p"))
    expect_4xx(lambda: decode_base64(text, "p"))


def fuzz_app(data: bytes) -> None:
    """The first bytes choose method, path, headers and where the body is cut in two."""
    head, body = data[:HEAD].ljust(HEAD, b"\0"), data[HEAD:]
    status = asyncio.run(_status_of(_scope(head), body, cut=head[7] * len(body) // 256, app=head[6] % 2))
    assert 200 <= status < 500, status


def _scope(head: bytes) -> Scope:
    paths = ("/v1/encode", "/info", "/health", "/ready", "/v1/models", "/openapi.json", "/nothing", "//")
    accepts = ("*/*", "application/json", "application/vnd.safetensors", "text/html, */*;q=0.1", "image/png")
    deadlines = ("", "10", "0", "nan", "1e400", "x")
    headers = {
        "content-type": CONTENT_TYPES[head[0] % len(CONTENT_TYPES)],
        "accept": accepts[head[1] % len(accepts)],
        "authorization": ("", f"Bearer {KEY}", "Bearer x", "\xff")[head[2] % 4],
        "x-deadline-seconds": deadlines[head[3] % len(deadlines)],
    }
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if head[4] % 8 == 7 else "POST",
        "path": paths[head[5] % 8 if head[5] >= 128 else 0],
        "query_string": b"model=fake&encoding_format=float" if head[4] & 1 else b"model=fake",
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in headers.items() if text],
    }


async def _status_of(scope: Scope, body: bytes, cut: int, app: int) -> int:
    incoming: list[Message] = [
        {"type": "http.request", "body": body[:cut], "more_body": True},
        {"type": "http.request", "body": body[cut:], "more_body": False},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await APPS[app](scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body", False)
    return int(sent[0]["status"])


def decoder_target(modality: Modality) -> Callable[[bytes], None]:
    """The decoder of a modality, as a target."""

    def fuzz_decoder(data: bytes) -> None:
        for variant in {data, mended(data)}:
            expect_4xx(lambda variant=variant: decode(Media(modality, variant, "p"), LIMITS))  # type: ignore[misc]

    return fuzz_decoder


def expect_4xx(run: Callable[[], object]) -> None:
    """Run it, and let no other error of ours pass than one that is the caller's."""
    try:
        run()
    except PoolError as error:
        if not 400 <= error.status < 500:
            raise


def mended(data: bytes) -> bytes:
    """The bytes with the checksums of a PNG's chunks set right, without which no change gets far."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        (size,) = struct.unpack_from(">I", out, at)
        end = at + 8 + size
        if end + 4 > len(out):
            break
        struct.pack_into(">I", out, end, zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


TARGETS: dict[str, Callable[[bytes], None]] = {
    "parser": fuzz_parser,
    "uri": fuzz_uri,
    "image": decoder_target(Modality.IMAGE),
    "audio": decoder_target(Modality.AUDIO),
    "video": decoder_target(Modality.VIDEO),
    "app": fuzz_app,
}

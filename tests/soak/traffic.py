"""The callers: each sends one request after the other, of a kind drawn anew, and counts how it ended.

Good requests go through the client, which repeats what a killed process cost. What a kind may end with is
said beside it; everything else is a complaint.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from encoder_pool.client import AsyncEncoderClient, EncoderError
from encoder_pool.client.errors import error_of_transport
from encoder_pool.core import Modality
from tests.soak.media import Rows, Sample, bad, same_rows, samples

HANG_S = 180.0
"""A request that has not ended after this time hangs: its own deadline is `TIMEOUT_S` for each attempt."""
TIMEOUT_S = 60.0
RETRIES = 10
NEW_SHARE = 0.6
"""Of good media, those sent with bytes that nobody has sent: the cache knows the others."""

Kind = Callable[["Caller"], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Target:
    """One application, and the rows that it gave for every sample while nobody disturbed it."""

    name: str
    url: str
    model: str
    modalities: tuple[Modality, ...]
    rows: dict[bytes, Rows]


@dataclass(slots=True)
class Ledger:
    """Every request and its ending.

    begun, ended  requests of each kind, and of each kind and ending
    complaints    endings that should not be, in words
    good_s        seconds of good requests, from the first attempt to the rows
    """

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    good_s: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Requests that have ended."""
        return self.ended.total()


@dataclass(slots=True)
class Caller:
    """One of several at work at once."""

    rng: random.Random
    target: Target
    client: AsyncEncoderClient
    http: httpx.AsyncClient
    ledger: Ledger

    def sample(self, modality: Modality | None = None) -> Sample:
        """One of the good ones."""
        return self.rng.choice(samples(modality or self.rng.choice(self.target.modalities)))

    def sent(self, sample: Sample) -> bytes:
        """Its bytes, as they were or new."""
        return sample.renewed(self.rng) if self.rng.random() < NEW_SHARE else sample.data


async def call_until(
    end: float, targets: Sequence[Target], callers: int, seed: int, ledger: Ledger, told: Callable[[], None]
) -> None:
    """So many callers until the clock's time; whatever is begun then ends by itself."""

    async def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        target = targets[number % len(targets)]
        async with (
            AsyncEncoderClient(target.url, timeout_s=TIMEOUT_S, max_retries=RETRIES) as client,
            httpx.AsyncClient(base_url=target.url, timeout=TIMEOUT_S) as http,
        ):
            caller = Caller(rng, target, client, http, ledger)
            while time.monotonic() < end:
                await _one(caller)
                told()

    await asyncio.gather(*(work(number) for number in range(callers)))


async def _one(caller: Caller) -> None:
    name, kind = caller.rng.choices(list(KINDS.items()), weights=_WEIGHTS)[0]
    caller.ledger.begun[name] += 1
    try:
        async with asyncio.timeout(HANG_S):
            ending = await kind(caller)
    except TimeoutError:
        ending = "hung"
    if not ending.startswith(_ALLOWED[name]):
        caller.ledger.complaints.append(f"{caller.target.name}: {name} ended as {ending}")
    caller.ledger.ended[name, ending] += 1


async def _good(caller: Caller, wanted: Sequence[Sample]) -> str:
    started = time.monotonic()
    try:
        items = await caller.client.encode([caller.sent(sample) for sample in wanted])
    except EncoderError as error:
        return _word(error)
    caller.ledger.good_s.append(time.monotonic() - started)
    references = (caller.target.rows[sample.data] for sample in wanted)
    is_right = all(
        same_rows(item.embedding, reference) for item, reference in zip(items, references, strict=True)
    )
    return "ok" if is_right else "wrong rows"


async def _single(caller: Caller) -> str:
    return await _good(caller, [caller.sample()])


async def _several(caller: Caller) -> str:
    modality = caller.rng.choice(caller.target.modalities)
    return await _good(caller, [caller.sample(modality) for _ in range(caller.rng.randint(2, 6))])


async def _bad(caller: Caller) -> str:
    """One that must be refused, among good ones: the answer names it."""
    modality = caller.rng.choice(caller.target.modalities)
    known = bad(modality) or bad(Modality.IMAGE)
    each = caller.rng.choice(known)
    try:
        await caller.client.encode([caller.sent(caller.sample(modality)), each.data])
    except EncoderError as error:
        is_expected = (error.status_code, error.code) == (each.status, each.code)
        return f"refused as {each.code}" if is_expected else f"{_word(error)} for {each.name}"
    return f"accepted {each.name}"


async def _impatient(caller: Caller) -> str:
    """A deadline that most requests miss."""
    headers = {"x-deadline-seconds": f"{caller.rng.uniform(0.005, 0.5):.3f}"}
    files = [("files", ("one", caller.sent(caller.sample())))]
    return await _post(caller, files, headers)


async def _leaver(caller: Caller) -> str:
    """Gone before the answer, wherever the request is by then."""
    files = [("files", ("one", caller.sent(caller.sample()))) for _ in range(3)]
    request = asyncio.create_task(_post(caller, files, {}))
    await asyncio.wait([request], timeout=caller.rng.uniform(0, 0.4))
    if request.done():
        return request.result()
    request.cancel()
    await asyncio.wait([request])
    return "left"


async def _half_sender(caller: Caller) -> str:
    """Gone with half of the body sent."""
    url, body = urlsplit(caller.target.url), caller.sample().data
    try:
        _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(
            f"POST {url.path}/v1/encode?model={caller.target.model} HTTP/1.1\r\nhost: {url.netloc}\r\n"
            f"content-type: application/octet-stream\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        )
        writer.write(body[: len(body) // 2])
        await writer.drain()
        await asyncio.sleep(caller.rng.uniform(0, 0.3))
        writer.close()
        await writer.wait_closed()
    except OSError:
        return "closed"
    return "left"


async def _post(caller: Caller, files: list[tuple[str, tuple[str, bytes]]], headers: dict[str, str]) -> str:
    """Without the client and its retries."""
    data = {"model": caller.target.model}
    try:
        reply = await caller.http.post("/v1/encode", data=data, files=files, headers=headers)
    except httpx.TransportError as error:
        return _word(error_of_transport(error))
    if reply.is_success:
        return "ok"
    try:
        return str(reply.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return f"proxy {reply.status_code}"


def _word(error: EncoderError) -> str:
    if error.code is not None:
        return error.code
    return type(error).__name__ if error.status_code is None else f"proxy {error.status_code}"


# What a kill, or a full queue, may cost a request that nobody repeats.
_PASSING: tuple[str, ...] = (
    "ok",
    "ConnectionFailedError",
    "no_worker",
    "draining",
    "not_ready",
    "overloaded",
)
_PASSING += ("proxy 404", "proxy 502", "proxy 503", "proxy 504")
KINDS: dict[str, Kind] = {
    "single": _single,
    "several": _several,
    "bad": _bad,
    "impatient": _impatient,
    "leaver": _leaver,
    "half sender": _half_sender,
}
_WEIGHTS = (10, 3, 3, 2, 2, 1)
_ALLOWED: dict[str, tuple[str, ...]] = {
    "single": ("ok",),
    "several": ("ok",),
    "bad": ("refused as ",),
    "impatient": (*_PASSING, "deadline_exceeded"),
    "leaver": (*_PASSING, "left"),
    "half sender": ("left", "closed"),
}

"""What a client process does: send its share of a load, and say when each request was due, sent and answered.

Threads with `http.client`, one request at a time each: an answer of 9.8 MB costs a client 2 ms of CPU this
way, and 14 ms with httpx, of a machine that the service needs for itself. In a closed loop each thread sends
its next request when it has the answer to the last. In an open loop requests are due at given times,
whatever happens, and one that nobody is free to send in time is sent late: its latency counts from when it
was due.

Nothing is repeated: a refusal is a sample like any other. Times are of the monotonic clock, which all
processes of a host share. Knows nothing of Ray, towers or results.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

from encoder_pool.client.protocol import SAFETENSORS, SHARED_MEMORY
from encoder_pool.delivery.handle import Handle, host_identity
from encoder_pool.delivery.take import HandleGoneError, take

OK, REFUSED, NO_ANSWER = 200, 429, 0
"""Statuses; the last stands for a connection that broke, or an answer that was cut short."""

_BOUNDARY = "encoder-pool-bench"
_NEIGHBOUR = host_identity()
_BUFFER_BYTES = 1 << 18
_TIMEOUT_S = 120.0
_IDLE_S = 5.0
"""A connection that was not used for this long is replaced: the server may be about to close it."""
_REFUSED_S = 0.1
"""How long a closed loop waits after a refusal."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: a model's application on a host."""

    host: str
    port: int
    prefix: str
    model: str


@dataclass(frozen=True, slots=True)
class Share:
    """One client's share of a load.

    images     in a request
    shares     whether rows are asked for in shared memory, which is then mapped and released
    lanes      requests that it has in flight at most
    first      position of the photo that it begins with; it takes one after the other, round and round
    due        of an open loop: when requests are to be sent, ascending; None for a closed loop
    begin_at   when a closed loop sends its first request
    count_from, end_at   what counts of it: a closed loop sends nothing after its end
    most       requests of a closed loop, where it ends by number and not by time
    """

    target: Target
    photos: tuple[Path, ...]
    images: int
    lanes: int
    first: int
    begin_at: float
    count_from: float
    end_at: float
    due: tuple[float, ...] | None = None
    most: int | None = None
    shares: bool = False


class Sample(NamedTuple):
    """One request: position of its first photo, three times, what came and how, and milliseconds by stage."""

    photo: int
    due: float
    sent: float
    done: float
    status: int
    stages_ms: dict[str, float]
    is_shared: bool = False


class Report(NamedTuple):
    """All requests of a share, and the CPU seconds of the process from `count_from` to `end_at`."""

    samples: list[Sample]
    cpu_s: float


class _Answer(NamedTuple):
    """Its status and `Server-Timing`, and whether it came in shared memory."""

    status: int
    timing: str
    is_shared: bool


class _Turn(NamedTuple):
    """The right to send a request when it is due."""

    due: float
    photo: int


def carry_out(share: Share) -> Report:
    """Send the whole share; returns when everything is answered."""
    turns = _Turns(share)
    with ThreadPoolExecutor(share.lanes) as threads:
        lanes = [threads.submit(_Lane(share).run, turns) for _ in range(share.lanes)]
        _sleep_until(share.count_from)
        begun = time.process_time()
        wait(lanes, None if share.end_at == inf else max(share.end_at - time.monotonic(), 0.0))
        cpu_s = time.process_time() - begun
    return Report([sample for lane in lanes for sample in lane.result()], cpu_s)


class _Turns:
    """Hands requests out to whoever is free, one by one."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._left = iter(share.due) if share.due is not None else self._closed()
        self._photo = share.first

    def take(self) -> _Turn | None:
        """The next; None if there is none."""
        with self._lock:
            due = next(self._left, None)
            if due is None:
                return None
            photo, self._photo = self._photo, (self._photo + self._share.images) % len(self._share.photos)
            return _Turn(due, photo)

    def _closed(self) -> Iterator[float]:
        sent = 0
        while sent != self._share.most and time.monotonic() < self._share.end_at:
            sent += 1
            yield max(time.monotonic(), self._share.begin_at)


class _Lane:
    """One thread and its connection."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0

    def run(self, turns: _Turns) -> list[Sample]:
        """Send whatever it gets to send."""
        samples = []
        while (turn := turns.take()) is not None:
            body = _body(self._share, turn.photo)
            _sleep_until(turn.due)
            samples.append(self._send(turn, body))
            if samples[-1].status == REFUSED and self._share.due is None:
                time.sleep(_REFUSED_S)
        self._close()
        return samples

    def _send(self, turn: _Turn, body: bytes) -> Sample:
        sent = time.monotonic()
        if sent - self._used_at > _IDLE_S:
            self._close()
        try:
            answer = self._exchange(body)
        except (OSError, http.client.HTTPException, HandleGoneError):
            self._close()
            answer = _Answer(NO_ANSWER, "", False)
        self._used_at = time.monotonic()
        stages_ms = stages_of(answer.timing)
        return Sample(turn.photo, turn.due, sent, self._used_at, answer.status, stages_ms, answer.is_shared)

    def _exchange(self, body: bytes) -> _Answer:
        """The answer, which is read to its end, or mapped and released."""
        target = self._share.target
        if self._connection is None:
            self._connection = http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_S)
        headers = {
            "accept": SAFETENSORS,
            "content-type": f"multipart/form-data; boundary={_BOUNDARY}",
        }
        if self._share.shares:
            headers |= {"accept": f"{SHARED_MEMORY}, {SAFETENSORS};q=0.9", "x-encoder-pool-host": _NEIGHBOUR}
        self._connection.request("POST", f"{target.prefix}/v1/encode", body, headers)
        reply = self._connection.getresponse()
        timing = reply.getheader("server-timing", "")
        if reply.getheader("content-type") == SHARED_MEMORY:
            _, lease = take(Handle(**json.loads(reply.read())["memory"]))
            lease.release()
            return _Answer(reply.status, timing, True)
        left = reply.length
        while got := reply.readinto(self._buffer):
            left = None if left is None else left - got
        if left:
            raise http.client.IncompleteRead(b"", left)
        return _Answer(reply.status, timing, False)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def stages_of(server_timing: str) -> dict[str, float]:
    """Milliseconds by stage, out of a `Server-Timing` header; empty if there is none."""
    parts = (part.partition(";dur=") for part in server_timing.split(", ") if part)
    return {name: float(ms) for name, _, ms in parts}


def _body(share: Share, first: int) -> bytes:
    """A multipart body of the request's photos."""
    chosen = [share.photos[(first + at) % len(share.photos)] for at in range(share.images)]
    return b"".join(
        (_field("model", share.target.model), *map(_file, chosen), f"--{_BOUNDARY}--\r\n".encode())
    )


@cache
def _file(path: Path) -> bytes:
    head = f'content-disposition: form-data; name="files"; filename="{path.name}"\r\ncontent-type: image/jpeg'
    return f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + path.read_bytes() + b"\r\n"


def _field(name: str, value: str) -> bytes:
    return f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def _sleep_until(at: float) -> None:
    left = at - time.monotonic()
    if left > 0:
        time.sleep(left)


def dealt(due: Sequence[float], clients: int) -> list[tuple[float, ...]]:
    """Times dealt out to clients, one by one: together they send them all."""
    return [tuple(due[client::clients]) for client in range(clients)]

"""What a client process sends, over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import uvicorn
from starlette.types import ASGIApp

from encoder_pool.bench.service.load import NO_ANSWER, OK, REFUSED, Share, Target, carry_out, dealt, stages_of
from encoder_pool.http.multipart import boundary_of, split_form
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool
from tests.pool.local_pool import until

from .server import Answer, Asked, Server, serving

PHOTO = Path(__file__).parents[3] / "encoder_pool" / "demo" / "media" / "cat.jpg"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def share(server: Server, tmp_path: Path) -> Share:
    """Twelve requests of one photo, two at a time."""
    photos = tuple(tmp_path / f"{number}.jpg" for number in range(5))
    for photo in photos:
        photo.write_bytes(f"the photo {photo.name}".encode())
    now = time.monotonic()
    return Share(server.target, photos, 1, 2, 3, now, now, inf, most=12)


def fields_of(asked: Asked, name: str) -> list[bytes]:
    parts = split_form(asked.body, boundary_of(asked.content_type))
    return [asked.body[part.start : part.end] for part in parts if part.name == name]


def test_photos_go_round_and_round_as_multipart_files_to_the_model(server: Server, share: Share) -> None:
    report = carry_out(replace(share, lanes=1))
    assert [sample.photo for sample in report.samples] == [3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    for sample, asked in zip(report.samples, server.asked, strict=True):
        assert asked.path == "/image/v1/encode"
        assert fields_of(asked, "files") == [share.photos[sample.photo].read_bytes()]
        assert fields_of(asked, "model") == [b"toy"]


def test_a_request_of_several_images_has_the_photos_that_follow(server: Server, share: Share) -> None:
    carry_out(replace(share, lanes=1, images=3, most=2))
    sent = [fields_of(asked, "files") for asked in server.asked]
    assert sent == [[share.photos[at].read_bytes() for at in chosen] for chosen in ([3, 4, 0], [1, 2, 3])]


def test_a_closed_loop_has_as_many_in_flight_as_lanes_and_sends_no_more_than_it_may(
    server: Server, share: Share
) -> None:
    together = threading.Barrier(2, timeout=30)
    server.answer = lambda number: (together.wait(), Answer())[1]  # nobody is answered alone
    report = carry_out(share)
    assert (len(report.samples), server.most) == (12, 2)
    assert {sample.status for sample in report.samples} == {OK}


def test_a_closed_loop_begins_when_it_is_told_to_and_sends_nothing_after_its_end(share: Share) -> None:
    begin = time.monotonic() + 0.2
    report = carry_out(replace(share, most=None, begin_at=begin, count_from=begin, end_at=begin + 0.3))
    assert report.samples
    assert all(begin <= sample.due <= sample.sent <= sample.done for sample in report.samples)
    assert all(sample.due < begin + 0.3 for sample in report.samples)


def test_what_is_sent_late_because_nobody_was_free_counts_from_when_it_was_due(
    server: Server, share: Share
) -> None:
    """One lane and three requests due at once: the others wait for the first, and say so."""
    released = threading.Event()
    server.answer = lambda number: (released.wait(30), Answer())[1] if number == 0 else Answer()
    now = time.monotonic()
    threading.Timer(0.2, released.set).start()
    report = carry_out(replace(share, lanes=1, due=(now, now, now)))
    assert [sample.due for sample in report.samples] == [now] * 3
    first, *others = report.samples
    assert all(other.sent >= first.done for other in others)


def test_an_open_loop_sends_nothing_before_it_is_due(share: Share) -> None:
    now = time.monotonic()
    due = tuple(now + at for at in (0.05, 0.1, 0.1, 0.3))
    report = carry_out(replace(share, due=due))
    assert sorted(sample.due for sample in report.samples) == list(due)
    assert all(sample.sent >= sample.due for sample in report.samples)


def test_refusals_broken_connections_and_cut_answers_are_samples_and_the_rest_goes_on(
    server: Server, share: Share
) -> None:
    bad = {1: Answer(REFUSED), 3: None, 5: Answer(missing=10), 7: Answer(500)}
    server.answer = lambda number: bad.get(number, Answer())
    report = carry_out(replace(share, lanes=1, due=(time.monotonic(),) * 12))
    assert Counter(sample.status for sample in report.samples) == {OK: 8, REFUSED: 1, NO_ANSWER: 2, 500: 1}


def test_nobody_there_is_no_answer(share: Share) -> None:
    nobody = replace(share.target, port=1)
    report = carry_out(replace(share, target=nobody, most=3))
    assert [sample.status for sample in report.samples] == [NO_ANSWER] * 3


def test_stages_come_from_the_reply(share: Share) -> None:
    report = carry_out(replace(share, most=1))
    assert report.samples[0].stages_ms == {"prepare": 2.5, "encode": 4.0, "total": 6.5}
    assert stages_of("") == {}


async def test_rows_are_taken_out_of_shared_memory_and_let_go_of() -> None:
    pool = FakePool()
    with pool.sharing():
        async with listening(build_app(pool)) as port:
            now = time.monotonic()
            target = Target("127.0.0.1", port, "", "fake")
            share = Share(target, (PHOTO,), 2, 2, 0, now, now, inf, most=6, shares=True)
            shared = await asyncio.to_thread(carry_out, share)
            bodies = await asyncio.to_thread(carry_out, replace(share, shares=False))
        await until(lambda: pool.leases.describe()["released"] == 6)
    assert [(each.status, each.is_shared) for each in shared.samples] == [(OK, True)] * 6
    assert [(each.status, each.is_shared) for each in bodies.samples] == [(OK, False)] * 6
    assert all(each.stages_ms["total"] > 0 for each in shared.samples)


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """The port of a server in this loop, where the leases are."""
    config = uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="critical", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def test_times_are_dealt_out_so_that_together_all_are_sent() -> None:
    due = [float(at) for at in range(11)]
    parts = dealt(due, 3)
    assert sorted(at for part in parts for at in part) == due
    assert {len(part) for part in parts} == {3, 4}

"""Replicas follow the work on a real service, from none to two and back, and each shows the whole pool.

The tests after the first share one burst of requests; the last ends it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from encoder_pool.pool.ledger import STALE_S
from tests.service.running import Service, kill, processes_of, wait_until
from tests.service.toys import encode_many, post
from tests.toy import SLOW, toy

pytestmark = pytest.mark.service

LEDGER, REPLICA = "ray::_LedgerActor", "ServeReplica:scaled:"
WAIT_S = 90.0


def pids(service: Service, name: str) -> list[int]:
    return [child.pid for child, line in processes_of(service.process).items() if name in line]


class Burst:
    """More work than one replica does in time, until there is calm.

    statuses  of the answers, and 0 for requests without one: their replica was killed
    """

    def __init__(self, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._calm = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._ask_at_once()])
        self._thread.start()

    def calm(self) -> None:
        self._calm.set()
        self._thread.join()

    async def _ask_at_once(self) -> None:
        async with httpx.AsyncClient(timeout=WAIT_S, limits=httpx.Limits(max_connections=None)) as client:
            await asyncio.gather(*(self._ask(client, value) for value in range(24)))

    async def _ask(self, client: httpx.AsyncClient, value: int) -> None:
        while not self._calm.is_set():
            try:
                reply = await post(client, self._url, [toy(value, SLOW)])
            except httpx.TransportError:
                self.statuses[0] += 1
            else:
                self.statuses[reply.status_code] += 1


def rows_of(info: httpx.Response) -> dict[str, bool]:
    """Whether each replica that a reply of /info shows is stale."""
    view = info.json()["pool"]
    return {row["replica"]: row["is_stale"] for row in view["replicas"]} if view else {}


def live_of(rows: dict[str, bool]) -> set[str]:
    return {name for name, is_stale in rows.items() if not is_stale}


class Watcher:
    """What the pool shows of itself, by whatever replica the proxy chooses."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._highest = 0.0
        self._next_scrape_s = 0.0

    def rows(self) -> dict[str, bool]:
        """Whether each replica is stale."""
        reply = self._get("/info")
        return {} if reply is None else rows_of(reply)

    def live(self) -> set[str]:
        return live_of(self.rows())

    def two(self) -> set[str]:
        """The two replicas, once they are there."""
        seen: list[set[str]] = []

        def are_two() -> bool:
            seen.append(self.live())
            return len(seen[-1]) == 2

        wait_until(are_two, WAIT_S)
        return seen[-1]

    def wait_until_both_show(self, two: set[str]) -> None:
        """Until each of the two has answered with both of them."""
        showing: set[str] = set()

        def both_show() -> bool:
            reply = self._get("/info")
            if reply is not None and live_of(rows_of(reply)) == two:
                showing.add(reply.json()["replica"]["replica"])
            return showing == two

        wait_until(both_show, WAIT_S)

    def wait_for_more(self) -> None:
        """Until items are counted that were not; never are there fewer than before."""
        before = self._highest
        wait_until(lambda: self._items() > before, WAIT_S)

    def wait_for_all_to_know(self) -> None:
        """Until both replicas have seen what one of them has shown."""
        knowing: set[str] = set()

        def both_know() -> bool:
            info = self._get("/info")
            if info is not None and info.json()["pool"]["counters"]["items_ok"] >= self._highest:
                knowing.add(info.json()["replica"]["replica"])
            return len(knowing) == 2

        wait_until(both_know, WAIT_S)

    def _items(self) -> float:
        """At a scraper's pace: to two who ask at once two replicas may tell what is seconds apart."""
        time.sleep(max(0.0, self._next_scrape_s - time.monotonic()))
        reply = self._get("/metrics")
        self._next_scrape_s = time.monotonic() + STALE_S
        if reply is None:
            return self._highest
        wanted = {"model": "toy", "modality": "image", "outcome": "ok"}
        items = sum(
            sample.value
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
            if sample.name == "encoder_pool_items_total" and sample.labels == wanted
        )
        assert items >= self._highest
        self._highest = items
        return items

    def _get(self, route: str) -> httpx.Response | None:
        """On a connection of its own. None from a replica that was just killed, or knows nothing yet."""
        try:
            reply = httpx.get(f"{self._url}{route}", timeout=WAIT_S)
        except httpx.TransportError:
            return None
        return reply if reply.status_code == 200 else None


@pytest.fixture(scope="module")
def url(several: Service) -> str:
    return f"{several.root}/scaled"


@pytest.fixture(scope="module")
def watcher(url: str) -> Watcher:
    return Watcher(url)


@pytest.fixture(scope="module")
def burst(url: str) -> Iterator[Burst]:
    burst = Burst(url)
    yield burst
    burst.calm()


def test_without_work_there_is_no_replica_and_the_first_request_starts_one_and_waits_for_it(
    several: Service, url: str
) -> None:
    wait_until(lambda: not pids(several, REPLICA), WAIT_S)
    assert not pids(several, LEDGER)
    (reply,) = encode_many(url, [[toy(1)]])
    assert reply.status_code == 200
    assert len(pids(several, REPLICA)) == 1


def test_a_burst_brings_a_second_replica_and_both_show_the_whole_pool(burst: Burst, watcher: Watcher) -> None:
    watcher.wait_until_both_show(watcher.two())
    watcher.wait_for_more()
    assert set(burst.statuses) == {200}


def test_a_killed_ledger_costs_no_request_and_no_count(
    several: Service, burst: Burst, watcher: Watcher
) -> None:
    two = watcher.two()
    watcher.wait_for_more()
    (ledger,) = pids(several, LEDGER)
    kill(ledger)
    wait_until(lambda: pids(several, LEDGER) not in ([], [ledger]), WAIT_S)
    watcher.wait_for_more()
    assert watcher.two() == two
    assert set(burst.statuses) == {200}


def test_a_killed_replica_is_marked_stale_and_what_it_counted_stays(
    several: Service, burst: Burst, watcher: Watcher
) -> None:
    two = watcher.two()
    watcher.wait_for_more()
    watcher.wait_for_all_to_know()
    kill(pids(several, REPLICA)[0])
    wait_until(lambda: any(watcher.rows().get(name) for name in two), WAIT_S)
    assert watcher.two() != two
    watcher.wait_for_more()


def test_with_calm_all_replicas_go_and_the_ledger_with_them(several: Service, burst: Burst) -> None:
    burst.calm()
    wait_until(lambda: not pids(several, REPLICA), WAIT_S)
    wait_until(lambda: not pids(several, LEDGER), WAIT_S)

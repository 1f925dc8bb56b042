"""The ledger of a pool, without Ray: several replicas, one ledger after the other, a clock by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.metrics.families import Family, Series
from encoder_pool.pool.ledger import GONE_S, STALE_S, PoolLedger, ReplicaReport, Totals, View


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Replica:
    """Counts, reports, and remembers what it was shown."""

    name: str
    count: int = 0
    reports: int = 0
    seen: View | None = field(default=None, repr=False)

    def report(self, is_last: bool = False) -> ReplicaReport:
        self.reports += 1
        samples = {Series("x_total", ()): float(self.count)}
        totals = Totals({"items": self.count}, (Family("x", "", "counter", samples),))
        held = {"tokens": 7}
        gauges = (Family("g", "", "gauge", {Series("g", ()): 7.0}),)
        return ReplicaReport(
            self.name, "node", "host", self.reports, "ready", held, 1.0, totals, gauges, is_last=is_last
        )

    def push(self, ledger: PoolLedger, *, is_new: bool = False, is_last: bool = False) -> View:
        self.seen = ledger.push(self.report(is_last), self.seen if is_new else None)
        return self.seen


def items(view: View) -> int:
    """The sum, which must be the same in the counters and in the metrics."""
    (family,) = view.totals.families
    assert list(family.samples.values()) == [view.totals.counters["items"]]
    return view.totals.counters["items"]


def gauge(view: View) -> float:
    return sum(value for family in view.gauges for value in family.samples.values())


def test_every_replica_sees_the_sum_of_all() -> None:
    ledger = PoolLedger(Clock())
    a, b = Replica("a", 3), Replica("b", 4)
    assert items(a.push(ledger)) == 3
    assert items(b.push(ledger)) == 7
    a.count = 10
    view = a.push(ledger)
    assert items(view) == 14
    assert [row.report.replica for row in view.rows] == ["a", "b"]
    assert gauge(view) == 14


def test_a_silent_replica_is_stale_then_gone_and_its_counts_stay() -> None:
    clock = Clock()
    ledger = PoolLedger(clock)
    a, b = Replica("a", 3), Replica("b", 4)
    b.push(ledger)
    a.push(ledger)
    clock.now += STALE_S + 0.1
    view = a.push(ledger)
    assert {row.report.replica: row.is_stale for row in view.rows} == {"a": False, "b": True}
    assert (items(view), gauge(view), view.gone.replicas) == (7, 7, 0)
    clock.now += GONE_S
    view = a.push(ledger)
    assert [row.report.replica for row in view.rows] == ["a"]
    assert (items(view), view.gone.replicas) == (7, 1)


def test_a_view_grows_older_while_it_is_kept() -> None:
    (row,) = Replica("a").push(PoolLedger(Clock())).later(STALE_S + 1).rows
    assert row.is_stale


def test_a_replica_that_leaves_in_order_is_gone_at_once() -> None:
    ledger = PoolLedger(Clock())
    a, b = Replica("a", 3), Replica("b", 4)
    a.push(ledger)
    b.push(ledger)
    b.count = 6
    b.push(ledger, is_last=True)
    view = a.push(ledger)
    assert [row.report.replica for row in view.rows] == ["a"]
    assert (items(view), view.gone.replicas) == (9, 1)


def test_the_next_ledger_goes_on_from_what_a_replica_has_seen() -> None:
    clock = Clock()
    first = PoolLedger(clock)
    a, b, c = Replica("a", 3), Replica("b", 4), Replica("c", 5)
    for replica in (a, b, c):
        replica.push(first)
    c.push(first, is_last=True)
    b.push(first)
    a.push(first)
    second = PoolLedger(clock)  # and b is lost together with the first
    view = a.push(second, is_new=True)
    assert (items(view), view.gone.replicas) == (12, 1)
    assert {row.report.replica for row in view.rows} == {"a", "b"}
    assert not view.is_whole
    clock.now += STALE_S + 0.1
    view = a.push(second)
    assert {row.report.replica: row.is_stale for row in view.rows} == {"a": False, "b": True}
    assert view.is_whole


def test_a_view_is_whole_when_all_live_replicas_have_reported_to_the_ledger_itself() -> None:
    first, second = PoolLedger(Clock()), PoolLedger(Clock())
    a, b = Replica("a", 3), Replica("b", 4)
    for replica in (a, b, a):
        replica.push(first)
    b.count = 6
    assert items(b.push(first)) == 9  # which a has not seen
    a.push(second, is_new=True)
    assert a.seen is not None
    assert not a.push(second).is_whole
    view = b.push(second, is_new=True)
    assert (items(view), view.is_whole) == (9, True)


def test_the_newer_of_two_views_is_gone_on_from_whichever_comes_first() -> None:
    for order in ("ab", "ba"):
        clock = Clock()
        first = PoolLedger(clock)
        replicas = {name: Replica(name, 1) for name in "abc"}
        for replica in replicas.values():
            replica.push(first)
        replicas["a"].push(first)
        replicas["c"].count = 5
        replicas["c"].push(first, is_last=True)
        replicas["b"].push(first)  # knows that c has left, and with how much; a does not
        second = PoolLedger(clock)
        for name in order:
            view = replicas[name].push(second, is_new=True)
        assert items(view) == 7
        assert view.gone.replicas == 1


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_no_sum_ever_falls_and_in_the_end_every_count_is_there(data: st.DataObject) -> None:
    """Replicas count, report, leave and are killed; ledgers are lost and begun anew. Whoever is killed was
    seen by another after its last report: what nobody has seen, nobody can bring to the next ledger."""
    clock = Clock()
    ledger = PoolLedger(clock)
    alive = [Replica("0"), Replica("1")]
    born, lost, shown = 2, 0, 0
    knows: set[str] = set()  # replicas that have reported to this ledger
    for replica in alive:
        replica.push(ledger)
        knows.add(replica.name)

    def push(replica: Replica, *, is_last: bool = False) -> int:
        view = replica.push(ledger, is_new=replica.name not in knows, is_last=is_last)
        knows.add(replica.name)
        return items(view)

    for _ in range(data.draw(st.integers(5, 40))):
        clock.now += data.draw(st.sampled_from([0.0, 1.0, STALE_S, GONE_S / 3, GONE_S / 2]))
        for replica in alive:
            replica.count += data.draw(st.integers(0, 3))
        event = data.draw(st.sampled_from(["count", "count", "join", "leave", "kill", "lose"]))
        if event == "join" and len(alive) < 4:
            alive.append(Replica(str(born)))
            born += 1
        if event == "leave" and len(alive) > 1:
            leaver = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            push(leaver, is_last=True)
            lost += leaver.count
        for replica in data.draw(st.permutations(alive)):
            push(replica)
        if event == "kill" and len(alive) > 1:
            lost += alive.pop(0).count
            for replica in alive:
                push(replica)
        if event == "lose":
            ledger, knows = PoolLedger(clock), set()
            for replica in data.draw(st.permutations(alive)):
                push(replica)
        total = items(ledger.push(alive[0].report(), None))
        assert total >= shown
        assert total == lost + sum(replica.count for replica in alive)
        shown = total

from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.simulate.leastconn import Leastconn


def test_servers_take_turns_while_they_have_equally_many() -> None:
    balance = Leastconn("abc")
    assert [balance.choose() for _ in range(6)] == list("abcabc")


def test_the_one_with_fewest_is_chosen() -> None:
    balance = Leastconn("ab")
    assert [balance.choose() for _ in range(4)] == list("abab")
    balance.release("b")
    balance.release("b")
    assert [balance.choose() for _ in range(2)] == ["b", "b"]


def test_a_server_that_was_removed_may_still_end_what_it_has() -> None:
    balance = Leastconn("ab")
    assert balance.choose() == "a"
    balance.remove("a")
    balance.release("a")
    assert [balance.choose() for _ in range(2)] == ["b", "b"]
    balance.add("c")
    assert balance.choose() == "c"


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_whoever_is_chosen_never_has_more_than_another(releases: list[int]) -> None:
    """A number below the servers' releases one of that server's connections; others choose."""
    servers = range(4)
    balance, connections = Leastconn(servers), dict.fromkeys(servers, 0)
    for number in releases:
        if connections.get(number, 0):
            balance.release(number)
            connections[number] -= 1
        else:
            chosen = balance.choose()
            assert connections[chosen] == min(connections.values())
            connections[chosen] += 1

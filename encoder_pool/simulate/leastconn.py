"""How HAProxy chooses a server (`balance leastconn`, as Serve has it): the fewest connections, in turn.

Each proxy counts its own connections only, and knows nothing of what a request costs, nor of other proxies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

S = TypeVar("S")


class Leastconn(Generic[S]):
    """The servers of one proxy, by their connections through it."""

    def __init__(self, servers: Iterable[S]) -> None:
        self._connections: dict[S, int] = {}
        # Per number of connections the servers that have as many, longest unchosen first: a dict keeps order.
        self._equals: list[dict[S, None]] = [{}]
        for server in servers:
            self.add(server)

    def add(self, server: S) -> None:
        """A server without connections."""
        self._connections[server] = 0
        self._equals[0][server] = None

    def remove(self, server: S) -> None:
        """Choose this server no more. Its connections may end later."""
        del self._equals[self._connections.pop(server)][server]

    def choose(self) -> S:
        """A server, which has one connection more until it is released. There must be one."""
        server = next(server for equals in self._equals for server in equals)
        self._move(server, 1)
        return server

    def release(self, server: S) -> None:
        """A connection of this server has ended."""
        if server in self._connections:
            self._move(server, -1)

    def _move(self, server: S, by: int) -> None:
        connections = self._connections[server]
        del self._equals[connections][server]
        self._connections[server] = connections + by
        if connections + by == len(self._equals):
            self._equals.append({})
        self._equals[connections + by][server] = None

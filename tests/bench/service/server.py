"""A server of a few lines that answers as it is told to, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from encoder_pool.bench.service.load import Target


class Answer(NamedTuple):
    """What is sent; `missing` bytes less than its head promises."""

    status: int = 200
    body: bytes = bytes(1000)
    missing: int = 0


class Asked(NamedTuple):
    path: str
    content_type: str
    body: bytes


class Server:
    """Answers the n-th request, from 0, with `answer(n)`; `most` is how many it had at once."""

    def __init__(self, port: int) -> None:
        self.target = Target("127.0.0.1", port, "/image", "toy")
        self.asked: list[Asked] = []
        self.answer: Callable[[int], Answer | None] = lambda number: Answer()
        self.now = self.most = 0
        self.lock = threading.Lock()


@contextmanager
def serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with server.lock:
                server.asked.append(Asked(self.path, self.headers["content-type"], body))
                number = len(server.asked) - 1
                server.now += 1
                server.most = max(server.most, server.now)
            answer = server.answer(number)
            with server.lock:
                server.now -= 1
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("content-length", str(len(answer.body)))
            self.send_header("server-timing", "prepare;dur=2.500, encode;dur=4.000, total;dur=6.500")
            self.end_headers()
            self.wfile.write(answer.body[answer.missing :])
            self.close_connection = answer.missing > 0

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(http.server_port)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()

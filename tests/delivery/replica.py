"""A replica in a process of its own, without Ray: the routes over a pool in memory that shares.

Prints its URL, and serves until it is killed. Its arguments are those of DeliveryConfig, `name=number`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from encoder_pool.config import DeliveryConfig
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool, fake_config


@contextmanager
def replica(**delivery: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of one, and its process."""
    command = [sys.executable, "-m", "tests.delivery.replica"]
    process = subprocess.Popen(
        [*command, *(f"{name}={value}" for name, value in delivery.items())],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


async def main(delivery: DeliveryConfig) -> None:
    pool = FakePool(fake_config(delivery=delivery))
    config = uvicorn.Config(build_app(pool), port=0, lifespan="off", ws="none", log_level="critical")
    server = uvicorn.Server(config)
    with pool.sharing():
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        sys.stdout.write(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await serving


if __name__ == "__main__":
    asyncio.run(main(DeliveryConfig.model_validate(dict(word.split("=") for word in sys.argv[1:]))))

"""Services of toy towers and of others beside them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from tests.toy import SLOW, expected, toy


def application(name: str, **sections: Any) -> dict[str, Any]:
    """An application of toys under its name, small enough to run beside others; or of what `sections` say.

    Without a cache: tests count what the tower does.
    """
    arguments: dict[str, dict[str, Any]] = {
        "model": {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "."},
        "ladder": {"min": 1, "max": 8},
        "cache": {"max_bytes": 0},
        "replica": {"cpus": 0.1},
        "shard": {"cpus": 0.1},
    }
    for section, values in sections.items():
        arguments[section] = {**arguments.get(section, {}), **values}
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "encoder_pool.builder:build_app",
        "args": arguments,
    }


def service_file(folder: Path, *applications: dict[str, Any]) -> Path:
    """A configuration with these applications. Toys have the folder as their checkpoint."""
    (folder / "config.json").write_text("{}")
    for each in applications:
        model = each["args"]["model"]
        model["checkpoint"] = str(folder / model["checkpoint"])
    document = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1"},
        "applications": list(applications),
    }
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


async def post(
    client: httpx.AsyncClient, url: str, items: list[bytes], headers: dict[str, str] | None = None
) -> httpx.Response:
    uris = [f"data:image/png;base64,{base64.b64encode(item).decode()}" for item in items]
    parts = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    body = {"model": "toy", "input": parts, "encoding_format": "float"}
    return await client.post(f"{url}/v1/encode", json=body, headers=headers)


def encode_many(url: str, requests: list[list[bytes]]) -> list[httpx.Response]:
    """All requests at once, without retries."""

    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            return await asyncio.gather(*(post(client, url, items) for items in requests))

    return asyncio.run(run())


def flood(url: str, requests: int, a_second: float, deadline_s: float) -> list[httpx.Response]:
    """Slow toys, so many a second whatever becomes of them, without retries."""

    async def one(client: httpx.AsyncClient, number: int) -> httpx.Response:
        await asyncio.sleep(number / a_second)
        headers = {"x-deadline-seconds": f"{deadline_s}"}
        return await post(client, url, [toy(number % 256, SLOW)], headers)

    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            return await asyncio.gather(*(one(client, number) for number in range(requests)))

    return asyncio.run(run())


def assert_rows(reply: httpx.Response, *values: int) -> None:
    assert reply.status_code == 200, reply.text
    for entry, value in zip(reply.json()["data"], values, strict=True):
        np.testing.assert_array_equal(np.array(entry["embedding"]), expected(value))

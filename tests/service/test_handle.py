"""PoolHandle through a real Serve handle, from a process that joins the service's cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.service.running import ROOT, Service, processes_of, wait_until
from tests.toy import TOKENS, expected

pytestmark = pytest.mark.service

CALLER = """
import asyncio, json, sys
import ray
from encoder_pool import PoolHandle
from encoder_pool.client import EncoderError

PNG = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(9)

async def failure(call):
    try:
        await call
    except EncoderError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]

def seen(items):
    return [[item.rows[:, 0].tolist(), item.rows.shape, item.lease is not None] for item in items]

async def main():
    toys, bulky = PoolHandle.of("toys"), PoolHandle.of("bulky")
    found = {"bulky": seen(await bulky.encode([PNG, PNG])), "toys": seen(await toys.encode(PNG))}
    found["bad"] = await failure(toys.encode([PNG, b"no picture"]))
    at_once = await asyncio.gather(*(toys.encode(PNG) for _ in range(40)))
    found["at_once"] = [seen(items) for items in at_once]
    import encoder_pool.handle
    encoder_pool.handle.host_identity = lambda: "elsewhere.1.0"
    found["by_value"] = seen(await bulky.encode([PNG, PNG]))
    return found

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps(asyncio.run(main())))
"""


def cluster_address(service: Service) -> str:
    lines = " ".join(processes_of(service.process).values())
    match = re.search(r"--gcs-address=(\S+)", lines)
    assert match is not None, lines
    return match[1]


@pytest.fixture(scope="module")
def found(several: Service) -> dict[str, Any]:
    command = [sys.executable, "-c", CALLER, cluster_address(several)]
    # A cluster that Ray starts for one program asks others for its user's token, unless told not to.
    environment = {"RAY_AUTH_MODE": "token", **os.environ}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return document


COLUMN = expected(0x89)[:, 0].tolist()


def test_rows_come_in_shared_memory_on_the_same_host_and_by_value_from_another(found: dict[str, Any]) -> None:
    assert found["bulky"] == [[COLUMN, [TOKENS, 25_000], True]] * 2
    assert found["by_value"] == [[COLUMN, [TOKENS, 25_000], False]] * 2
    assert found["toys"] == [[COLUMN, [TOKENS, 4], True]]


def test_calls_at_once_are_all_answered(found: dict[str, Any]) -> None:
    assert found["at_once"] == [found["toys"]] * 40


def test_a_bad_item_is_the_clients_own_error(found: dict[str, Any]) -> None:
    assert found["bad"] == ["UnsupportedMediaError", 415, "unsupported_media_type", "files[1]"]


def test_all_leases_of_a_caller_end_with_it(several: Service, found: dict[str, Any]) -> None:
    wait_until(lambda: several.info(f"{several.root}/bulky")["delivery"]["open"] == 0, 20)
    assert several.info(f"{several.root}/bulky")["delivery"]["released"] >= 1

"""The command line as a person meets it: a process, its output, its status, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from rich.console import Console

from encoder_pool.client import EncodedItem
from encoder_pool.client.command import items_table
from encoder_pool.config import PoolConfig
from encoder_pool.core import DType, Grid, Modality, Source
from encoder_pool.launch.host import free_port
from tests.launch.toy_service import toy_document, toy_entry, write

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("encoder-pool")
LIMIT_S = 60.0
"""For what ends at once on any machine that is not busy."""
MARK = "ENCODER_POOL_TEST_MARK"
SLOW_ADAPTER = """
import time
from pathlib import Path

class Slow:
    def __init__(self, checkpoint):
        (checkpoint / "constructing").touch()
        time.sleep(60)
"""

MISFIT_ADAPTER = """
from tests.toy import ToyAdapter

class Misfit(ToyAdapter):
    def load(self, model):
        raise ValueError("the weights are of another shape")
"""


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def encoder_pool(*arguments: str | Path) -> Ended:
    """Run a command to its end, which must come in time and leave no process."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", MARK: mark}
    result = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert not left_behind(mark)
    assert "Traceback" not in result.stderr
    return Ended(result.returncode, result.stdout, result.stderr)


def left_behind(mark: str) -> list[str]:
    """Names of the processes that run with this mark in their environment."""
    names = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                names.append(process.name())
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return names


def refused(*arguments: str | Path) -> str:
    """What a command says that ends with status 2 and has not begun to work."""
    ended = encoder_pool(*arguments)
    assert ended.status == 2
    assert ended.out == "" or (ended.out.startswith("starting ") and ended.out.count("\n") == 1)
    return ended.err


def put(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Set keys of the application's args."""
    return lambda document: document["applications"][0]["args"].update(changes)


def put_model(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["applications"][0]["args"]["model"].update(changes)


def put_top(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(changes)


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], None], tuple[str, ...]]] = {
    "unknown key": (
        put_model(adaptor="toy"),
        ("service.yaml: applications[0].args.model: unknown key 'adaptor'; did you mean 'adapter'?",),
    ),
    "unknown key of the file": (
        put_top(http_option={}),
        ("service.yaml: unknown key 'http_option'; did you mean 'http_options'?",),
    ),
    "unknown adapter": (
        put_model(adapter="dino"),
        ("service.yaml: application 'toys': model.adapter 'dino' is", "built in: dinov2, grid, whisper"),
    ),
    "adapter that cannot be imported": (
        put_model(adapter="no.such.module:Adapter"),
        ("application 'toys': model.adapter 'no.such.module:Adapter' cannot be imported",),
    ),
    "missing checkpoint": (
        put_model(checkpoint="/no/such/folder"),
        ("model.checkpoint '/no/such/folder' is no checkpoint: /no/such/folder/config.json does not exist",),
    ),
    "too few CPUs": (
        put(replica={"cpus": 10_000}),
        ("the applications reserve 10000.4 CPUs (replica.cpus + shard.cpus", "this host has"),
    ),
    "empty ladder": (
        put(ladder={"min": 8, "max": 4}),
        ("service.yaml: application 'toys': ladder.min (8) is above ladder.max (4)",),
    ),
    "ladder of two kinds": (
        put(ladder={"min": 8, "budgets": [1]}),
        ("service.yaml: applications[0].args.ladder: ladder takes either 'budgets' or 'min'",),
    ),
    "host of another machine": (
        put_top(http_options={"host": "203.0.113.7"}),
        ("port 8000 on 203.0.113.7: Cannot assign requested address (http_options.host",),
    ),
    "value that only Serve checks": (
        put_top(target_capacity="half", http_options={"host": "127.0.0.1", "port": free_port()}),
        ("service.yaml: target_capacity: Input should be a valid number",),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_ends_at_once_and_names_the_place(tmp_path: Path, mistake: str) -> None:
    change, parts = MISTAKES[mistake]
    document = toy_document(tmp_path, port=free_port())
    change(document)
    message = refused("serve", write(tmp_path, document))
    assert message.startswith("encoder-pool: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("command", ["serve", "plan", "demo"])
def test_a_missing_file_ends_at_once_and_is_named(tmp_path: Path, command: str) -> None:
    path = tmp_path / "nothing.yaml"
    assert refused(command, path) == f"encoder-pool: {path}: No such file or directory\n"


def test_a_file_that_is_not_yaml_ends_at_once_and_says_where(tmp_path: Path) -> None:
    path = write(tmp_path, "applications: [a: b: c")
    message = refused("serve", path)
    assert message.startswith(f"encoder-pool: {path}: not YAML")
    assert "line 1, column 20" in message


def test_a_taken_port_is_told_before_weights_are_looked_at(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        entry = toy_entry(tmp_path, model={"checkpoint": "/no/such/folder"})
        path = write(tmp_path, toy_document(tmp_path, entry, port=listener.getsockname()[1]))
        assert "Address already in use" in refused("serve", path)


def test_a_taken_port_ends_at_once_and_names_its_settings(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        path = write(tmp_path, toy_document(tmp_path, port=free_port()))
        message = refused("serve", path, "--port", str(port))
    assert f"port {port} on 127.0.0.1: Address already in use" in message
    assert "http_options.port, or --port" in message


def test_a_file_for_a_gpu_ends_at_once_where_there_is_none_and_names_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    message = refused("serve", ROOT / "serve_configs" / "qwen.yaml", "--port", str(free_port()))
    assert "the applications reserve 1 GPUs" in message
    assert "this host has none" in message
    other = "serve_configs/qwen-tiny.yaml"
    assert other in message
    assert encoder_pool("plan", ROOT / other).status == 0


def test_all_that_the_host_lacks_is_told_at_once(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, replica={"cpus": 10_000})
    message = refused("serve", write(tmp_path, toy_document(tmp_path, entry, host="203.0.113.7")))
    assert "CPUs" in message
    assert "203.0.113.7" in message


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "required: COMMAND"),
        (("srve", "file.yaml"), "invalid choice: 'srve'"),
        (("serve", "file.yaml", "--port", "70000"), "--port: 70000 is no port; they are 1 to 65535"),
        (("serve", "file.yaml", "--port", "http"), "--port: http is no port; they are 1 to 65535"),
        (("serve", "file.yaml", "--drain-s", "-1"), "--drain-s: -1 is no number of seconds; it is 0 or more"),
        (("demo", "--start-timeout-s", "nan"), "--start-timeout-s: nan is no number of seconds"),
        (("demo", "--picture", "/no/such/folder/demo.png"), "--picture: there is no folder /no/such/folder"),
        (("encode", "a.jpg"), "required: --url"),
        (("encode", "a.jpg", "--url", "127.0.0.1:8000"), "--url: 127.0.0.1:8000 is no URL; it starts with"),
        (
            ("encode", "a.jpg", "--url", "http://127.0.0.1:1", "--out", "/no/such/folder/a.safetensors"),
            "--out: there is no folder /no/such/folder",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], part: str) -> None:
    assert part in refused(*arguments)


def test_a_message_is_one_line_however_narrow_the_terminal(tmp_path: Path) -> None:
    document = toy_document(tmp_path, toy_entry(tmp_path, model={"checkpoint": "/no" + "/where" * 20}))
    assert refused("plan", write(tmp_path, document)).count("\n") == 1


def test_a_plan_shows_the_ladder_of_every_application(tmp_path: Path) -> None:
    entries = [toy_entry(tmp_path, "one"), toy_entry(tmp_path, "two", ladder={"budgets": [3, 7]})]
    document = toy_document(tmp_path, *entries, port=free_port())
    ended = encoder_pool("plan", write(tmp_path, document))
    assert (ended.status, ended.err) == (0, "")
    for part in (
        "one: toy",
        "two: toy",
        "budget (items)",
        "largest item 12 tokens",
        "largest item 21 tokens",
    ):
        assert part in ended.out


def test_a_plan_of_a_service_that_this_host_cannot_run_is_shown_and_the_reason_told(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, shard={"cpus": 10_000})
    document = toy_document(tmp_path, entry, port=free_port())
    ended = encoder_pool("plan", write(tmp_path, document))
    assert ended.status == 0
    assert "largest item 12 tokens" in ended.out
    assert "it cannot start here: " in ended.err
    assert "shard.cpus" in ended.err


def test_a_plan_for_a_gpu_is_shown_where_there_is_none_and_says_that_its_times_are_assumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ended = encoder_pool("plan", ROOT / "serve_configs" / "qwen.yaml")
    assert ended.status == 0
    assert "qwen: qwen2.5-vl-7b" in ended.out
    assert "times assumed" in ended.out
    assert "it cannot start here: " in ended.err
    assert "this host has none" in ended.err


def test_the_configuration_is_listed_with_every_key() -> None:
    ended = encoder_pool("config")
    assert (ended.status, ended.err) == (0, "")
    for section, field in PoolConfig.model_fields.items():
        assert field.annotation is not None
        for key in field.annotation.model_fields:
            assert f" {section}.{key} " in ended.out


def test_encoding_without_a_server_fails_and_says_so(tmp_path: Path) -> None:
    media = tmp_path / "a.jpg"
    media.write_bytes(b"not looked at")
    ended = encoder_pool("encode", media, "--url", f"http://127.0.0.1:{free_port()}/image")
    assert ended.status == 1
    assert ended.out == ""
    assert ended.err.startswith("encoder-pool: ")
    assert "the connection failed" in ended.err
    assert "refused" in ended.err


@contextmanager
def started(path: Path, *more_paths: Path) -> Iterator[subprocess.Popen[str]]:
    """`encoder-pool serve FILE`, which must have ended by the end of the block and have left no process."""
    mark = uuid.uuid4().hex
    python_path = ":".join(str(folder) for folder in (ROOT, *more_paths))
    with subprocess.Popen(
        [COMMAND, "serve", path, "--drain-s", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path, MARK: mark},
    ) as process:
        yield process
    assert not left_behind(mark)


def test_a_command_that_is_terminated_before_it_serves_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "slow_adapter.py").write_text(SLOW_ADAPTER)
    entry = toy_entry(tmp_path, model={"adapter": "slow_adapter:Slow"})
    with started(write(tmp_path, toy_document(tmp_path, entry)), tmp_path) as process:
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "checkpoint" / "constructing").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (out.count("\n"), err) == (1, "")
    assert process.returncode == 130


@pytest.mark.service
def test_a_service_whose_weights_do_not_fit_says_so_and_where_the_logs_are(tmp_path: Path) -> None:
    (tmp_path / "misfit_adapter.py").write_text(MISFIT_ADAPTER)
    entry = toy_entry(tmp_path, model={"adapter": "misfit_adapter:Misfit"})
    with started(write(tmp_path, toy_document(tmp_path, entry, port=free_port())), tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the weights are of another shape" in err
    assert "/logs" in err
    assert out.count("\n") == 1


def test_a_long_file_name_is_shown_whole_however_narrow_the_terminal() -> None:
    source = Source("jpeg", 451, 300)
    rows = np.zeros((257, 384), np.float32)
    item = EncodedItem(rows, DType.FLOAT32, Modality.IMAGE, Grid(1, 16, 16), 1, (), source, "digest")
    console = Console(width=80, force_terminal=False)
    name = "".join(f"{number:03}" for number in range(40))
    with console.capture() as captured:
        console.print(items_table([Path(f"{name}.jpg")], [item]))
    shown = captured.get()
    assert "\u2026" not in shown
    pieces = [line.split("\u2502")[1].strip() for line in shown.splitlines() if line.startswith("\u2502")]
    assert "".join(pieces) == f"{name}.jpg"

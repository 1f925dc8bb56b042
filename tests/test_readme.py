"""Every block of the README, run as it stands but for the port.

`make serve` is what the `demo` fixture runs; `qwen_tiny` runs the file of another `make serve`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from encoder_pool.launch.host import free_port
from tests.service.running import ROOT, Service

pytestmark = pytest.mark.service

README = (ROOT / "README.md").read_text()


class Block(NamedTuple):
    language: str
    code: str


BLOCKS = [Block(*match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)]
# Where the service is at the root it is that of qwen-tiny.yaml.
ON_QWEN_TINY = [block for block in BLOCKS if re.search(r":8000/(v1|info)", block.code)]
ON_DEMO = [block for block in BLOCKS if not block.code.startswith("make ") and block not in ON_QWEN_TINY]
MAKE = [block.code.strip() for block in BLOCKS if block.code.startswith("make ")]


def first_line(block: Block) -> str:
    return block.code.split("\n")[0][:40]


def test_the_readme_has_the_blocks_that_a_newcomer_needs() -> None:
    assert MAKE == [
        "make demo",
        "make test",
        "make serve",
        "make serve CONFIG=serve_configs/qwen-tiny.yaml",
        "make serve CONFIG=serve_configs/qwen.yaml",
    ]
    assert {block.language for block in BLOCKS} == {"bash", "python"}
    assert ON_QWEN_TINY
    assert ON_DEMO


@pytest.mark.parametrize("block", ON_DEMO, ids=first_line)
def test_a_block_runs_against_the_default_service(block: Block, demo: Service, tmp_path: Path) -> None:
    run_block(block, demo, tmp_path)


@pytest.mark.parametrize("block", ON_QWEN_TINY, ids=first_line)
def test_a_block_runs_against_the_grid_service(block: Block, qwen_tiny: Service, tmp_path: Path) -> None:
    run_block(block, qwen_tiny, tmp_path)


def run_block(block: Block, service: Service, folder: Path) -> None:
    code = block.code.replace("http://127.0.0.1:8000", service.root)
    code = code.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    code = code.replace("-o cat.safetensors", f"-o {folder}/cat.safetensors")
    shell = [sys.executable, "-c", code] if block.language == "python" else ["bash", "-euc", code]
    run = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout or (folder / "cat.safetensors").stat().st_size > 257 * 384 * 4
    assert '"error"' not in run.stdout


@pytest.mark.parametrize("command", MAKE[2:])
def test_make_serves_the_file_that_it_is_told_to(command: str) -> None:
    dry = subprocess.run(
        [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    file = command.partition("CONFIG=")[2] or "serve_configs/demo.yaml"
    assert f"encoder-pool serve {file} --port 8000" in dry.stdout
    assert (ROOT / file).is_file()


def make(command: str) -> subprocess.Popen[str]:
    """The command with a port of its own, in the environment that runs the tests."""
    environment = {**os.environ, "PORT": str(free_port())}
    return subprocess.Popen(
        [*command.split(), f"VENV={Path(sys.executable).parents[1]}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_make_demo_prints_and_draws() -> None:
    picture = ROOT / "demo.png"
    picture.unlink(missing_ok=True)
    process = make("make demo")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert "5 of 5 photos have their own crop as nearest neighbour" in output
    assert "speech: 1 item(s), 12.0 s, 600 tokens of 384 float32" in output
    assert picture.stat().st_size > 100_000


def test_the_gate_runs_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
    dry = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pytest" in dry.stdout

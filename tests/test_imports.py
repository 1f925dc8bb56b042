"""What may import what. Read from the sources, and proven in fresh interpreters."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import encoder_pool

PACKAGE = Path(encoder_pool.__file__).parent
DEFERRING = (ast.FunctionDef, ast.AsyncFunctionDef)
HEAVY = {"fastapi", "ray", "starlette", "torch", "transformers"}

ALLOWED = {
    "core": set(),
    "errors": set(),
    "config": {"core"},
    "auth": {"config"},
    "delivery": {"config", "errors"},
    "metrics": set(),
    "weights": set(),
    "media": {"config", "core", "errors"},
    "towers": {"config", "core", "errors", "media"},
    "graphs": {"config", "core", "towers.adapter"},
    "http": {"auth", "config", "core", "delivery.handle", "errors", "media", "metrics"},
    "client": {"core", "delivery", "errors", "http.service"},
    "handle": {"client", "delivery", "errors", "pool.calls"},
    "demo": {"client"},
    "pool": {
        "auth",
        "config",
        "core",
        "delivery",
        "errors",
        "graphs",
        "http",
        "media.bands",
        "metrics",
        "towers.adapter",
        "weights",
    },
    "launch": {"auth", "config", "core", "graphs", "pool", "towers.adapter", "weights"},
    "builder": {"auth", "config", "pool", "towers.adapter", "weights"},
    "bench": {
        "builder",
        "client",
        "config",
        "core",
        "delivery",
        "errors",
        "graphs",
        "launch",
        "pool.batcher",
        "pool.bring_up",
        "pool.measured",
        "pool.messages",
        "pool.ray_shard",
        "pool.ring",
        "pool.sizing",
        "towers",
        "weights",
    },
    "simulate": {
        "bench",
        "config",
        "core",
        "errors",
        "graphs",
        "launch.file",
        "metrics",
        "pool",
        "towers.adapter",
        "weights",
    },
    "cli": {"bench", "client", "demo", "launch", "simulate.options", "simulate.command", "weights"},
}
"""The modules of ours that each part of the package may import, besides its own."""


class Import(NamedTuple):
    """One import that is executed: of a module, by a file, perhaps only when a function is called."""

    module: str
    file: str
    is_deferred: bool


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imports() -> Iterator[Import]:
    for file, tree in sources():
        yield from _imports(tree, file, is_deferred=False)


def _imports(node: ast.AST, file: str, is_deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, file, is_deferred) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None
            assert child.level == 0, f"{file} imports relatively"
            yield from _from_imports(child.module, child.names, file, is_deferred)
        yield from _imports(child, file, is_deferred or isinstance(child, DEFERRING))


def _from_imports(module: str, names: list[ast.alias], file: str, is_deferred: bool) -> Iterator[Import]:
    """A name may be a module itself: `from encoder_pool.client import protocol`."""
    for alias in names:
        inner = PACKAGE.parent / module.replace(".", "/") / alias.name
        is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
        yield Import(f"{module}.{alias.name}" if is_module else module, file, is_deferred)


def importers(*libraries: str) -> list[Import]:
    found = [each for each in imports() if each.module.partition(".")[0] in libraries]
    assert found, "a rule about a library that nobody imports proves nothing"
    return found


def part_of(file: str) -> str:
    """The folder of the package that a file is in, or the module it is."""
    return file.partition("/")[0].removesuffix(".py")


def test_torch_is_imported_by_towers_graphs_bench_and_on_call_by_the_shard_and_the_client() -> None:
    for each in importers("torch"):
        is_deferred_here = each.is_deferred and each.file in ("pool/shard.py", "client/reply.py")
        assert part_of(each.file) in ("towers", "graphs", "bench") or is_deferred_here, each


def test_transformers_is_imported_by_towers_and_by_the_baseline_on_its_towers() -> None:
    for each in importers("transformers"):
        assert part_of(each.file) == "towers" or each.file == "bench/seed.py", each


def test_only_the_plots_need_matplotlib() -> None:
    for each in importers("matplotlib"):
        drawn = ("bench/plot.py", "bench/scaling_plot.py", "bench/service/plot.py", "simulate/plot.py")
        assert each.file in drawn, each


def test_ray_is_imported_by_the_pool_and_by_what_launches_it() -> None:
    for each in importers("ray"):
        is_ours = part_of(each.file) in ("pool", "builder", "handle")
        assert is_ours or each.file in ("launch/service.py", "bench/shard.py"), each


def test_the_web_framework_is_imported_by_the_http_side_only() -> None:
    for each in importers("fastapi", "starlette"):
        assert part_of(each.file) == "http" or each.file == "pool/deployment.py", each


def test_no_part_imports_more_of_ours_than_it_may() -> None:
    ours = [each for each in imports() if each.module.startswith("encoder_pool.")]
    for each in ours:
        imported = each.module.removeprefix("encoder_pool.")
        part = part_of(each.file)
        own = {part, *ALLOWED.get(part, ())}
        assert any(imported == may or imported.startswith(f"{may}.") for may in own), each


def test_every_part_of_the_package_has_its_rule() -> None:
    parts = {part_of(file) for file, _ in sources()} - {"__init__"}
    assert parts == set(ALLOWED)


def heavy_after(*modules: str) -> set[str]:
    """What a fresh interpreter has loaded of the heavy libraries after importing these modules."""
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=PACKAGE.parent,
    )
    return HEAVY & set(json.loads(result.stdout))


def test_importing_the_package_the_client_and_the_command_line_is_light() -> None:
    assert heavy_after("encoder_pool", "encoder_pool.client", "encoder_pool.cli") == set()


def test_a_plan_and_a_configuration_need_no_heavy_library() -> None:
    assert (
        heavy_after("encoder_pool.builder", "encoder_pool.launch.plan", "encoder_pool.launch.host") == set()
    )


def test_a_simulation_needs_no_heavy_library() -> None:
    assert heavy_after("encoder_pool.simulate.command", "encoder_pool.towers.grid") == set()


def test_what_a_replica_imports_before_it_serves_holds_no_torch() -> None:
    adapters = ("encoder_pool.towers.dinov2", "encoder_pool.towers.whisper")
    loaded = heavy_after(
        "encoder_pool.pool.pool", "encoder_pool.pool.dispatch", "encoder_pool.pool.deployment", *adapters
    )
    assert loaded == {"fastapi", "ray", "starlette"}


def test_the_pool_itself_knows_no_ray() -> None:
    assert not heavy_after("encoder_pool.pool.pool", "encoder_pool.pool.dispatch") & {"ray", "torch"}


def modules_with_all() -> Iterator[str]:
    for file, tree in sources():
        names = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)]
        if "__all__" in names:
            yield ".".join(("encoder_pool", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(modules_with_all()))
def test_exported_names_are_sorted_and_exist(name: str) -> None:
    module = importlib.import_module(name)
    exported: list[str] = module.__all__
    assert exported == sorted(exported)
    assert len(set(exported)) == len(exported)
    for each in exported:
        assert getattr(module, each) is not None


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        encoder_pool.Nothing  # noqa: B018

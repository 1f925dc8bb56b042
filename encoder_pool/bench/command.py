"""`encoder-pool bench`: its options, and what it says while it measures and at the end.

Imports torch and matplotlib only when a command runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from encoder_pool.bench.cases import TOWERS, WORKLOADS, Case, Subject
from encoder_pool.bench.results import Results, read
from encoder_pool.bench.service.command import add_options, count, seconds
from encoder_pool.bench.table import report
from encoder_pool.launch.show import progress_bar
from encoder_pool.launch.start import stop_on_signals

if TYPE_CHECKING:
    from encoder_pool.bench.service.results import ServiceResults

Say = Callable[[str, float | None], None]

_PICTURES = (".png", ".svg", ".pdf")


def add_commands(parser: argparse.ArgumentParser, target: Callable[[str], Path]) -> None:
    """The commands under `bench`; `target` reads the name of a file to be written."""
    picture = picture_target(target)
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    tower = commands.add_parser(
        "tower", help="time towers beside stock transformers, power-of-two graphs (the seed) and the floor"
    )
    tower.add_argument("--device", choices=sorted(WORKLOADS), help="by default a GPU if there is one")
    known = ", ".join(TOWERS)
    tower.add_argument("--towers", type=_subjects, help=f"{known}, or checkpoints; separated by commas")
    tower.add_argument("--cases", type=_cases, help="IMAGESxTOKENS, e.g. 1x256,8x256; images are square")
    tower.add_argument("--quick", action="store_true", help="fewer repeats and rungs, no sum of kernels")
    tower.add_argument("--out", type=target, help="write the results to this JSON file, as they come")
    tower.add_argument("--plot", type=picture, help="draw them to this file, e.g. tower.png")
    tower.set_defaults(run=_tower)
    plan = commands.add_parser("plan", help="time the planner, which the CPU runs for every pack")
    plan.add_argument("--out", type=target, help="write the results to this JSON file")
    plan.set_defaults(run=_plan)
    shard = commands.add_parser(
        "shard", help="a shard fed through its ring, beside bare replays of the same pack"
    )
    shard.add_argument(
        "--file", type=Path, required=True, help="the Serve configuration, its first application"
    )
    shard.add_argument("--images", type=count, default=8, help="of a pack; by default 8")
    shard.add_argument("--side", type=count, default=448, help="pixels of an image's side; by default 448")
    shard.add_argument("--seconds", type=seconds, default=10.0, help="for which packs are sent")
    shard.add_argument("--out", type=target, help="write the results to this JSON file")
    shard.set_defaults(run=_shard)
    scaling = commands.add_parser(
        "scaling", help="start a small service and see its replicas follow a load that rises and falls"
    )
    scaling.add_argument("--quick", action="store_true", help="one minute instead of three")
    scaling.add_argument("--out", type=target, help="write the results to this JSON file")
    scaling.add_argument("--plot", type=picture, help="draw them to this file, e.g. scaling.png")
    scaling.set_defaults(run=_scaling)
    service = commands.add_parser(
        "service", help="a whole service under load, HTTP to HTTP, beside its tower fed from memory"
    )
    add_options(service, target)
    service.add_argument("--plot", type=picture, help="draw them to this file, e.g. service.png")
    service.set_defaults(run=_service)
    plot = commands.add_parser("plot", help="draw the results of an earlier run")
    plot.add_argument("results", type=Path, help="what --out has written")
    plot.add_argument("picture", type=picture, help="e.g. tower.png")
    plot.set_defaults(run=_plot)


def picture_target(target: Callable[[str], Path]) -> Callable[[str], Path]:
    """Reads the name of a picture to be drawn, as `target` does that of any file."""

    def picture(text: str) -> Path:
        if Path(text).suffix not in _PICTURES:
            raise argparse.ArgumentTypeError(f"{text} is no picture; one ends with {' or '.join(_PICTURES)}")
        return target(text)

    return picture


def _subjects(text: str) -> tuple[Subject, ...]:
    return tuple(Subject.named(name) for name in text.split(","))


def _cases(text: str) -> tuple[Case, ...]:
    try:
        return tuple(Case.named(name) for name in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _tower(arguments: argparse.Namespace) -> int:
    from encoder_pool.bench.prepare import Options, prepare
    from encoder_pool.bench.tower import bench, complaints

    options = Options(
        device=arguments.device,
        subjects=arguments.towers,
        cases=arguments.cases,
        is_quick=arguments.quick,
        out=arguments.out,
        plot=arguments.plot,
    )
    try:
        require_matplotlib(options.plot)
        run = prepare(options)
    except ValueError as error:
        return _refuse(error)
    with _telling() as say:
        results = bench(run, options, say)
    _print(report(results))
    found = complaints(results)
    _complain(found)
    _draw(results, options.plot)
    return 1 if found else 0


def _plan(arguments: argparse.Namespace) -> int:
    from encoder_pool.bench.plan import bench, report, write

    words = ["encoder-pool", "bench", "plan", *(["--out", f"{arguments.out}"] if arguments.out else [])]
    results = bench(shlex.join(words))
    _print(report(results))
    if arguments.out is not None:
        write(results, arguments.out)
    return 0


def _shard(arguments: argparse.Namespace) -> int:
    from encoder_pool.bench.shard import Options, bench, report, write

    stop_on_signals()
    options = Options(arguments.file, arguments.images, arguments.side, arguments.seconds)
    words = ["encoder-pool", "bench", "shard", "--file", f"{options.file}", "--images", f"{options.images}"]
    words += ["--side", f"{options.side}", "--seconds", f"{options.seconds:g}"]
    words += ["--out", f"{arguments.out}"] if arguments.out else []
    try:
        with _telling() as say:
            results = bench(options, shlex.join(words), say)
    except ValueError as error:
        return _refuse(error)
    _print(report(results))
    if arguments.out is not None:
        write(results, arguments.out)
    return 0


def _scaling(arguments: argparse.Namespace) -> int:
    from encoder_pool.bench.scaling import FULL, QUICK, bench_scaling, summary, write_scaling

    try:
        require_matplotlib(arguments.plot)
        words = ["encoder-pool", "bench", "scaling", *(["--quick"] if arguments.quick else [])]
        for option, value in (("--out", arguments.out), ("--plot", arguments.plot)):
            words += [option, f"{value}"] if value else []
        with _telling() as say:
            results = bench_scaling(QUICK if arguments.quick else FULL, shlex.join(words), say)
    except (ValueError, RuntimeError) as error:
        return _refuse(error)
    for line in summary(results):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)
    if arguments.out is not None:
        write_scaling(results, arguments.out)
    if arguments.plot is not None:
        from encoder_pool.bench.scaling_plot import draw_scaling

        draw_scaling(results, arguments.plot)
    if results.lost:
        _complain([f"{results.lost} requests were lost"])
    return 1 if results.lost else 0


def _service(arguments: argparse.Namespace) -> int:
    from encoder_pool.bench.service.run import Options, run
    from encoder_pool.bench.service.table import WIDTH
    from encoder_pool.bench.service.table import report as service_report

    stop_on_signals()
    options = Options(
        file=arguments.file,
        name=arguments.name,
        sets=tuple(arguments.sets),
        seconds=arguments.seconds,
        clients=arguments.clients,
        application=arguments.application,
        soak=arguments.soak,
        overload=arguments.overload,
        appends=arguments.append,
        out=arguments.out,
    )
    try:
        require_matplotlib(arguments.plot)
        results, wrong = run(options)
    except ValueError as error:
        return _refuse(error)
    out = Console(width=max(Console().width, WIDTH))
    for part in service_report(results):
        out.print(part, markup=False, highlight=False)
    _complain(wrong)
    if arguments.plot is not None:
        _draw_service(results, arguments.plot)
    return 1 if wrong else 0


def _plot(arguments: argparse.Namespace) -> int:
    try:
        require_matplotlib(arguments.picture)
        _draw_again(arguments.results, arguments.picture)
    except (ValueError, OSError) as error:
        return _refuse(error)
    return 0


def _print(parts: Iterable[RenderableType]) -> None:
    out = Console()
    for part in parts:
        out.print(part, markup=False, highlight=False)


def _draw_again(results: Path, picture: Path) -> None:
    """The results of either benchmark. Raises ValueError for a file of neither."""
    from encoder_pool.bench.service.results import read as read_service

    try:
        found = read(results)
    except ValueError as error:
        try:
            service = read_service(results)
        except ValueError:
            raise ValueError(f"{results} holds no results of encoder-pool bench") from error
        _draw_service(service, picture)
    else:
        _draw(found, picture)


def _draw(results: Results, path: Path | None) -> None:
    if path is not None:
        from encoder_pool.bench.plot import draw

        draw(results, path)


def _draw_service(results: ServiceResults, path: Path) -> None:
    from encoder_pool.bench.service.plot import draw

    draw(results, path)


def require_matplotlib(path: Path | None) -> None:
    """Raise ValueError, which says what to install, for a picture that nothing is there to draw with."""
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            f"{path} is drawn with the package 'matplotlib', which is not installed; "
            "run: pip install 'encoder-pool[bench]'"
        )


def _refuse(error: Exception) -> int:
    _complain([str(error)])
    return 2


def _complain(problems: Sequence[str]) -> None:
    for problem in problems:
        message = f"encoder-pool: {problem}"
        Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _telling() -> Iterator[Say]:
    """A bar on a terminal; elsewhere a line for all that is begun and found, as it happens."""
    console = Console(stderr=True)
    if console.is_terminal:
        with progress_bar() as say:
            yield say
        return
    started = time.monotonic()

    def print_line(message: str, fraction: float | None) -> None:
        line = f"{time.monotonic() - started:6.1f} s  {fraction or 0:4.0%}  {message}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    yield print_line

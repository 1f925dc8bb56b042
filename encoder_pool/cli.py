"""The command line: `encoder-pool serve | plan | simulate | config | encode | demo | weights | bench`.

Everything that can be wrong is checked before Ray starts; a mistake ends with a message on standard error and
status 2, a service that fails to start with status 1.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path

from rich.console import Console

from encoder_pool.bench.command import add_commands
from encoder_pool.launch.errors import LaunchError
from encoder_pool.launch.file import ServiceFile, read_service_file
from encoder_pool.launch.host import Host, problems
from encoder_pool.launch.show import config_table, plan_table, progress_bar
from encoder_pool.launch.start import StartOptions, check_early, plans_of, started, stop_on_signals
from encoder_pool.simulate.options import add_options
from encoder_pool.weights import BUILTIN, WeightsError, ensure

DEMO = Path("serve_configs/demo.yaml")
INTERRUPTED = 128 + signal.SIGINT
"""Status of a command that Ctrl-C or SIGTERM ended before it was through, as shells have it."""
out = Console()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except LaunchError as error:
        _complain(error)
        return error.exit_status
    except WeightsError as error:
        _complain(error)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _complain(problem: object) -> None:
    message = f"encoder-pool: {problem}"
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="encoder-pool", description="Multimodal encoders as a pool.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="validate a file, check this host, and serve until stopped")
    serve.add_argument("file", type=Path, help="a Serve configuration, e.g. serve_configs/demo.yaml")
    _add_service_options(serve)
    serve.set_defaults(run=_serve)

    plan = commands.add_parser(
        "plan", help="show ladder, times, memory and padding of a file; starts nothing"
    )
    plan.add_argument("file", type=Path)
    plan.set_defaults(run=_plan)

    simulate = commands.add_parser(
        "simulate", help="how many GPUs some traffic needs, and what breaks first: in virtual time"
    )
    add_options(simulate, _target)
    simulate.set_defaults(run=_simulate)

    config = commands.add_parser("config", help="list every key of the configuration")
    config.set_defaults(run=_config)

    encode = commands.add_parser("encode", help="encode media files with a running service")
    encode.add_argument("media", nargs="+", type=Path)
    encode.add_argument(
        "--url", required=True, type=_url, help="base URL of a model, e.g. http://127.0.0.1:8000/image"
    )
    encode.add_argument("--out", type=_target, help="write the embeddings to this safetensors file")
    encode.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of a service that needs one; better in ENCODER_POOL_API_KEY, where ps does not show it",
    )
    encode.set_defaults(run=_encode)

    demo = commands.add_parser("demo", help="serve the default models, encode real media, draw, stop")
    demo.add_argument("file", type=Path, nargs="?", default=DEMO)
    demo.add_argument("--picture", type=_target, default=Path("demo.png"), help="where to draw to")
    _add_service_options(demo)
    demo.set_defaults(run=_demo)

    bench = commands.add_parser(
        "bench", help="measure towers, the planner or a whole service on this machine"
    )
    add_commands(bench, _target)

    weights = commands.add_parser("weights", help="bring the built-in weights into the cache")
    weights.set_defaults(run=_weights)
    return parser


def _add_service_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, help="HTTP port, instead of the file's")
    parser.add_argument("--no-haproxy", action="store_true", help="use Serve's own proxy: slower")
    parser.add_argument("--drain-s", type=_seconds, default=2.0, help="how long a stopping replica drains")
    parser.add_argument("--start-timeout-s", type=_seconds, default=300.0, help="give up starting after this")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port; they are 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if isfinite(seconds := float(text)) and seconds >= 0:
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is no number of seconds; it is 0 or more")


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text} is no URL; it starts with http:// or https://")
    return text


def _target(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def _serve(arguments: argparse.Namespace) -> int:
    with _service(arguments) as service, suppress(KeyboardInterrupt):
        for application in service.applications:
            out.print(f"{application.config.model.name}: {service.url(application)}/v1/encode")
        out.print("serving; Ctrl-C stops")
        threading.Event().wait()
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from encoder_pool.demo.show import show

    with _service(arguments) as service:
        show([service.url(application) for application in service.applications], arguments.picture, out)
    return 0


@contextmanager
def _service(arguments: argparse.Namespace) -> Iterator[ServiceFile]:
    """The service of the file, running; it stops when the block ends."""
    stop_on_signals()
    service = read_service_file(arguments.file)
    if arguments.port:
        service = service.with_port(arguments.port)
    check_early(service)
    starting = f"starting {service.path} on port {service.port} ..."
    out.print(starting, markup=False, highlight=False, soft_wrap=True)
    options = StartOptions(not arguments.no_haproxy, arguments.drain_s, arguments.start_timeout_s)
    with started(service, options):
        yield service


def _plan(arguments: argparse.Namespace) -> int:
    service = read_service_file(arguments.file)
    plans = plans_of(service)
    for application, plan in zip(service.applications, plans, strict=True):
        out.print(plan_table(application.name, plan))
    for problem in problems(service, plans, Host.this()):
        _complain(f"it cannot start here: {problem}")
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    from encoder_pool.simulate.command import run_command

    return run_command(arguments)


def _config(arguments: argparse.Namespace) -> int:
    out.print(config_table())
    return 0


def _encode(arguments: argparse.Namespace) -> int:
    from encoder_pool.client.command import encode_files

    return encode_files(arguments.url, arguments.media, arguments.out, out, arguments.api_key)


def _weights(arguments: argparse.Namespace) -> int:
    with progress_bar() as progress:
        folders = [ensure(f"builtin:{name}", progress) for name in BUILTIN]
    for folder in folders:
        out.print(str(folder))
    return 0

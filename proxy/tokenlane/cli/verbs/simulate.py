"""`tokenlane simulate`: simulated vLLM replicas alone."""

import argparse
import os
import signal
import threading
from typing import Any

import msgspec

from tokenlane.config.options import options_of
from tokenlane.errors import ConfigError

# Prefix of the simulator's settings among the arguments.
_OWN = "sim:"


def simulate_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: how many replicas, their ports, and how each behaves."""
    from tokenlane.simulator.profile import SimulatorSettings

    parser.usage = "%(prog)s [flags]"
    parser.add_argument(
        "--replicas", type=int, default=4, metavar="N", help="how many (default: 4)"
    )
    parser.add_argument(
        "--port", type=int, default=9000, metavar="P", help="first of N ports (default: 9000)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="their address (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--tokenizer",
        type=_model_folder,
        metavar="MODEL=DIR",
        help="the model served and its folder (default: demo, shipped with the package)",
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    group = parser.add_argument_group("each replica; by default instant and unlimited")
    for option in options_of(SimulatorSettings).values():
        if option.path not in {"model", "folder"}:  # those are --tokenizer
            group.add_argument(
                option.flag,
                dest=_OWN + option.path,
                metavar=option.metavar,
                help=(option.help + option.facts).replace("%", "%%"),
            )


def simulate(args: argparse.Namespace) -> int:
    """Run the fleet until told to stop."""
    from tokenlane.simulator.profile import SimulatorSettings
    from tokenlane.simulator.serve import run
    from tokenlane.telemetry.log.setup import setup_logs

    setup_logs("simulator")
    given: dict[str, Any] = {
        path.removeprefix(_OWN): value
        for path, value in vars(args).items()
        if path.startswith(_OWN) and value is not None
    }
    if args.tokenizer:
        given["model"], given["folder"] = args.tokenizer
    try:
        settings = msgspec.convert(given, SimulatorSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"simulate: {error}") from None
    if args.replicas < 1:
        raise ConfigError("--replicas must be at least 1")
    if not 0 <= args.port <= 65536 - args.replicas:
        raise ConfigError("simulate: --replicas and --port do not make a range of ports")
    if args.until_eof:
        threading.Thread(target=_until_eof, daemon=True).start()
    try:
        run(settings, args.host, args.port, args.replicas)
    except OSError as error:
        raise ConfigError(
            f"simulate: cannot listen on {args.host}, ports {args.port} and up"
            f" ({os.strerror(error.errno) if error.errno else error}); choose another --port"
        ) from None
    return 0


def _model_folder(text: str) -> tuple[str, str]:
    model, found, folder = text.partition("=")
    if not (model and found and folder):
        raise argparse.ArgumentTypeError("must look like MODEL=DIR")
    return model, folder


def _until_eof() -> None:
    """End this process when its stdin closes, which is when its parent is gone."""
    # Not sys.stdin: its lock, held by a daemon thread, aborts the interpreter at its end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

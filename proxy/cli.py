"""The command line: verbs, flags, exit codes.

Invariants:
- What the operator got wrong is one sentence on stderr and exit code 2, never a traceback.
- A flag overrides the file, the file overrides the defaults; `print-config` shows the result.
- Importing this module is cheap: a verb imports what it needs when it runs.
"""

# ruff: noqa: PLC0415 - a health check every few seconds must not load tokenizers and aiohttp

import argparse
import http.client
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy import __version__
from proxy.errors import ConfigError
from proxy.settings import Settings, load

_DEFAULTS = Settings()


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:
        # Nobody reads what we say (a closed pipe): no reason to stop serving.
        pass


def _setting(parser: argparse.ArgumentParser, flag: str, path: str, text: str, **how: Any) -> None:
    """A flag that overrides the setting at `path`, its help ending in the default."""
    default: Any = _DEFAULTS
    for name in path.split("."):
        default = getattr(default, name)
    shown = "" if isinstance(default, (dict, tuple)) else f" (default: {default})"
    parser.add_argument(flag, dest=path, help=text + shown, **how)


def _model_folder(text: str) -> tuple[str, str]:
    model, found, folder = text.partition("=")
    if not (model and found and folder):
        raise argparse.ArgumentTypeError("must look like MODEL=DIR")
    return model, folder


def _config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML")


def _port_flags(parser: argparse.ArgumentParser) -> None:
    _setting(parser, "--host", "server.host", "address of the data port", metavar="H")
    _setting(parser, "--port", "server.port", "data port; 0 picks one", type=int, metavar="P")
    _setting(parser, "--admin-host", "admin.host", "address of the admin port", metavar="H")
    _setting(parser, "--admin-port", "admin.port", "admin port; 0 picks one", type=int, metavar="P")


def _serving_flags(parser: argparse.ArgumentParser) -> None:
    _port_flags(parser)
    _setting(parser, "--workers", "server.workers", "data plane processes", type=int, metavar="N")
    _setting(parser, "--policy", "routing.policy", "how replicas are chosen", metavar="NAME")


def _gateway_flags(parser: argparse.ArgumentParser) -> None:
    _config_flag(parser)
    parser.add_argument(
        "--backend",
        dest="backends",
        action="append",
        metavar="URL",
        help="a replica, http://HOST:PORT; once per replica",
    )
    _serving_flags(parser)
    parser.add_argument(
        "--tokenizer",
        dest="folders",
        action="append",
        type=_model_folder,
        metavar="MODEL=DIR",
        help="the folder with a model's tokenizer.json; once per model",
    )


def _settings(args: argparse.Namespace) -> Settings:
    """Defaults, then the file, then the flags that were given."""
    overrides: dict[str, Any] = {}
    for path, value in vars(args).items():
        if "." in path and value is not None:
            section, name = path.split(".")
            overrides.setdefault(section, {})[name] = value
    if getattr(args, "backends", None):
        overrides["backends"] = args.backends
    if getattr(args, "folders", None):
        overrides["tokens"] = {"folders": dict(args.folders)}
    return load(args.config, overrides)


def _serve(args: argparse.Namespace) -> int:
    from proxy import supervisor
    from proxy.telemetry.logs import setup_logs

    setup_logs("supervisor")
    return supervisor.serve(_settings(args), _say)


def _demo(args: argparse.Namespace) -> int:
    from proxy import supervisor
    from proxy.control.ports import free_ports
    from proxy.simulator.child import FleetProcess
    from proxy.telemetry.logs import setup_logs
    from proxy.tokens.tokenizer import demo_folder

    setup_logs("supervisor")
    args.config, args.folders = None, [("demo", str(demo_folder()))]
    if args.replicas < 1:
        raise ConfigError("--replicas must be at least 1")
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}

    def greet(url: str) -> None:
        _say("\nTry it:\n")
        _say(f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\")
        _say(f"  -d '{json.dumps(body)}'\n")
        _say("Ctrl-C stops the gateway and its replicas.")

    with FleetProcess(args.replicas, free_ports(args.replicas)) as fleet:
        args.backends = fleet.urls
        return supervisor.serve(_settings(args), _say, on_ready=greet)


def _until_eof() -> None:
    """Ends this process when its stdin closes, which is when its parent is gone."""
    # Not sys.stdin: its lock, held by a daemon thread, aborts the interpreter at its end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _simulate(args: argparse.Namespace) -> int:
    from proxy.simulator.main import run
    from proxy.simulator.settings import SimulatorSettings
    from proxy.telemetry.logs import setup_logs

    setup_logs("simulator")
    given: dict[str, Any] = {
        path.removeprefix("sim:"): value
        for path, value in vars(args).items()
        if path.startswith("sim:") and value is not None
    }
    if args.tokenizer:
        given["model"], given["folder"] = args.tokenizer
    try:
        settings = msgspec.convert(given, SimulatorSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"simulate: {error}") from None
    if args.replicas < 1 or not 0 <= args.port <= 65536 - args.replicas:
        raise ConfigError("simulate: --replicas and --port do not make a range of ports")
    if args.until_eof:
        threading.Thread(target=_until_eof, daemon=True).start()
    try:
        run(settings, args.host, args.port, args.replicas)
    except OSError as error:
        raise ConfigError(
            f"simulate: cannot listen on {args.host}, ports {args.port} and up"
            f" ({os.strerror(error.errno) if error.errno else error})"
        ) from None
    return 0


def _check_config(args: argparse.Namespace) -> int:
    from proxy.supervisor import check_settings
    from proxy.tokens.tokenizer import Tokenizer

    settings = _settings(args)
    check_settings(settings)
    for model, folder in settings.tokens.folders.items():
        Tokenizer.load(model, Path(folder), fast=False)
    replicas, tokenizers = len(settings.backends), len(settings.tokens.folders)
    policy = settings.routing.policy
    _say(f"ok: {replicas} replica(s), {tokenizers} tokenizer(s), policy {policy}")
    return 0


def _print_config(args: argparse.Namespace) -> int:
    _say(msgspec.yaml.encode(_settings(args)).decode().rstrip())
    return 0


def _healthcheck(args: argparse.Namespace) -> int:
    admin = _settings(args).admin
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(admin.host, admin.host)
    connection = http.client.HTTPConnection(host, admin.port, timeout=args.timeout_s)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        print(f"not ready: no answer from {host}:{admin.port} ({error})", file=sys.stderr)
        return 1
    finally:
        connection.close()
    if response.status == http.client.OK:
        _say("ready")
        return 0
    try:
        why = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        why = f"status {response.status}"
    print(f"not ready: {why}", file=sys.stderr)
    return 1


def _replay(args: argparse.Namespace) -> int:
    from proxy.replay import command

    return command.run(args, _settings(args).routing, _say)


def _replay_flags(parser: argparse.ArgumentParser) -> None:
    from proxy.replay import command

    command.flags(parser)
    _config_flag(parser)


def _top(args: argparse.Namespace) -> int:
    from proxy.top import top

    return top(args.admin, once=args.once)


def _simulate_flags(parser: argparse.ArgumentParser) -> None:
    from proxy.simulator.settings import SimulatorSettings

    parser.add_argument("--replicas", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument(
        "--port", type=int, default=9000, metavar="P", help="first of N ports (default: 9000)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="(default: 127.0.0.1)")
    parser.add_argument(
        "--tokenizer",
        type=_model_folder,
        metavar="MODEL=DIR",
        help="the model served and its folder (default: demo, shipped with the package)",
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    group = parser.add_argument_group("a replica", inspect.getdoc(SimulatorSettings))
    for field in msgspec.structs.fields(SimulatorSettings):
        if field.name not in {"model", "folder"}:
            group.add_argument(
                "--" + field.name.replace("_", "-"),
                dest="sim:" + field.name,
                metavar="X",
                help=f"(default: {field.default})",
            )


def parser() -> argparse.ArgumentParser:
    """All verbs and flags."""
    made = argparse.ArgumentParser(
        prog="tokenlane",
        description="An LLM gateway that routes prompts to vLLM replicas by their tokens.",
    )
    made.add_argument("--version", action="version", version=f"tokenlane {__version__}")
    verbs = made.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made_verb = verbs.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made_verb.set_defaults(run=run)
        return made_verb

    _gateway_flags(verb("serve", _serve, "serve in front of the replicas given"))
    demo = verb("demo", _demo, "serve in front of a simulated fleet of its own")
    _serving_flags(demo)
    demo.add_argument("--replicas", type=int, default=4, metavar="N", help="(default: 4)")
    _simulate_flags(verb("simulate", _simulate, "run simulated vLLM replicas alone"))
    _replay_flags(verb("replay", _replay, "replay a trace through the routing, in simulated time"))
    _gateway_flags(verb("check-config", _check_config, "say whether the settings would serve"))
    _gateway_flags(verb("print-config", _print_config, "print the settings in force, as YAML"))
    health = verb("healthcheck", _healthcheck, "ask a running gateway whether it is ready")
    _config_flag(health)
    _setting(health, "--admin-host", "admin.host", "address of the admin port", metavar="H")
    _setting(health, "--admin-port", "admin.port", "admin port", type=int, metavar="P")
    health.add_argument(
        "--timeout-s", type=float, default=2.0, metavar="S", help="seconds to wait (default: 2)"
    )
    show = verb("top", _top, "show the live numbers of a running gateway; q quits")
    url = f"http://{_DEFAULTS.admin.host}:{_DEFAULTS.admin.port}"
    show.add_argument(
        "--admin", default=url, metavar="URL", help=f"its admin port (default: {url})"
    )
    show.add_argument("--once", action="store_true", help="print one screen and exit")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; its exit code: 0 well, 1 not well, 2 wrong settings."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        print(f"tokenlane: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code

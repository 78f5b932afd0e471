"""The command line: verbs, flags, exit codes.

Invariants:
- What the operator got wrong is one sentence on stderr and exit code 2, never a traceback.
- A flag overrides a variable, that the file, the file the defaults; `print-config` shows which.
- Flags of settings come from proxy.flags, none are made here.
- Importing this module is cheap: a verb imports what it needs when it runs.
"""

# ruff: noqa: PLC0415 - a health check every few seconds must not load tokenizers and aiohttp

import argparse
import difflib
import http.client
import inspect
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from proxy import __version__
from proxy.config import ConfigProblems, printed, schema
from proxy.errors import ConfigError
from proxy.flags import (
    admin_flags,
    config_file,
    config_flag,
    gateway_flags,
    loaded,
    setting_flags,
)
from proxy.options import unknown_variables
from proxy.settings import Settings

log = logging.getLogger("settings")


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:
        # Nobody reads what we say (a closed pipe): no reason to stop serving.
        pass


def _settings(args: argparse.Namespace) -> Settings:
    return loaded(args).settings


def _warn_of_variables(warn: Callable[[str], object]) -> None:
    """Those that look like settings and are none."""
    for name, meant in unknown_variables(os.environ).items():
        said = f"did you mean {meant}?" if meant else "tokenlane serve --help lists all"
        warn(f"the variable {name} means nothing; {said}")


def _model_folder(text: str) -> tuple[str, str]:
    model, found, folder = text.partition("=")
    if not (model and found and folder):
        raise argparse.ArgumentTypeError("must look like MODEL=DIR")
    return model, folder


def _serve(args: argparse.Namespace) -> int:
    from proxy import supervisor
    from proxy.control.reload import Given
    from proxy.telemetry.logs import setup_logs

    setup_logs("supervisor")
    settings = _settings(args)
    _warn_of_variables(log.warning)
    given = Given(config_file(args), lambda: loaded(args))
    return supervisor.serve(settings, _say, given=given)


def _demo(args: argparse.Namespace) -> int:
    from proxy.control.ports import free_ports
    from proxy.simulator.child import FleetProcess
    from proxy.telemetry.logs import setup_logs
    from proxy.tokens.demo import demo_folder

    setup_logs("supervisor")
    args.config = None
    setattr(args, "tokens.folders", [f"demo={demo_folder()}"])
    if args.replicas < 1:
        raise ConfigError("--replicas must be at least 1")
    begun = FleetProcess(args.replicas, free_ports(args.replicas))
    begun.start()
    from proxy import supervisor  # it takes as long as the fleet's start: both at once

    def greet(url: str) -> None:
        _say(f"\nTry it:\n\n{curl_line(url)}\n")
        _say("Ctrl-C stops the gateway and its replicas.")

    with begun as fleet:
        args.backends = list(fleet.urls)
        return supervisor.serve(_settings(args), _say, on_ready=greet)


def curl_line(url: str) -> str:
    """A command that asks the demo's gateway, for a shell."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}
    asked = f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\"
    return f"{asked}\n  -d '{json.dumps(body)}'"


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


def _check_config(args: argparse.Namespace) -> int:
    """Exit code 1 where the settings would not serve: every reason on a line of its own."""
    _warn_of_variables(lambda said: print(f"tokenlane: {said}", file=sys.stderr))
    try:
        return _checked(_settings(args), probing=args.probe)
    except ConfigProblems as error:
        problems = error.problems
    except ConfigError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"tokenlane: {problem}", file=sys.stderr)
    return 1


def _checked(settings: Settings, *, probing: bool) -> int:
    from proxy.control.checks import check_settings
    from proxy.tokens.tokenizer import Tokenizer

    check_settings(settings)
    for model, folder in settings.tokens.folders.items():
        Tokenizer.load(model, Path(folder), fast=False)
    replicas, tokenizers = len(settings.backends), len(settings.tokens.folders)
    policy = settings.routing.policy
    _say(f"ok: {replicas} replica(s), {tokenizers} tokenizer(s), policy {policy}")
    if probing:
        from proxy.doctor import Report, check_names, check_replicas

        report = Report(_say)
        check_names(report, settings, check_replicas(report, settings))
        return 1 if report.failed else 0
    return 0


def _print_config(args: argparse.Namespace) -> int:
    _say(json.dumps(schema(), indent=2) if args.schema else printed(loaded(args)))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from proxy.doctor import examine

    return examine(_settings(args), os.environ, _say)


def _completion(args: argparse.Namespace) -> int:
    from proxy.completion import script

    _say(script(args.shell, parser()))
    return 0


def _admin(args: argparse.Namespace) -> tuple[str, int]:
    """Where this machine reaches the admin port."""
    admin = _settings(args).admin
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(admin.host, admin.host)
    return host, admin.port


def _healthcheck(args: argparse.Namespace) -> int:
    host, port = _admin(args)
    connection = http.client.HTTPConnection(host, port, timeout=args.timeout_s)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        from proxy.control.explain_verb import nobody

        print(f"not ready: {nobody(host, port, error)}", file=sys.stderr)
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


def _explain(args: argparse.Namespace) -> int:
    from proxy.control.explain_verb import run

    return run(args, _settings(args).admin, _say)


def _replicas(args: argparse.Namespace) -> int:
    from proxy.control.change_verbs import replicas

    return replicas(args, _settings(args).admin, _say)


def _reload(args: argparse.Namespace) -> int:
    from proxy.control.change_verbs import reload

    return reload(args, _settings(args).admin, _say)


def _replay(args: argparse.Namespace) -> int:
    from proxy.replay import command

    return command.run(args, _settings(args).routing, _say)


def _replay_flags(parser: argparse.ArgumentParser) -> None:
    from proxy.replay import command

    command.flags(parser)
    config_flag(parser)


def _top(args: argparse.Namespace) -> int:
    from proxy.control.ports import url_of
    from proxy.top import top

    return top(args.admin or url_of(*_admin(args)), once=args.once)


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


def _flags(verb: argparse.ArgumentParser) -> list[str]:
    """All of a verb."""
    return [flag for action in verb._actions for flag in action.option_strings]  # noqa: SLF001


class _Parser(argparse.ArgumentParser):
    """Says what was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), names, 1)
            meant = f"did you mean {near[0]}? It is" if near else "it is"
            raise argparse.ArgumentError(
                action, f"there is no {value!r}; {meant} one of {', '.join(names)}"
            )


def parser() -> argparse.ArgumentParser:
    """All verbs and flags."""
    made = _Parser(
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
            # A setting that comes later must not change what a script means.
            allow_abbrev=False,
        )
        made_verb.set_defaults(run=run, flags=partial(_flags, made_verb))
        return made_verb

    gateway_flags(verb("serve", _serve, "serve in front of the replicas given"))
    demo = verb("demo", _demo, "serve in front of a simulated fleet of its own")
    setting_flags(demo, hidden=("backends", "tokens.folders"))
    demo.add_argument("--replicas", type=int, default=4, metavar="N", help="(default: 4)")
    _simulate_flags(verb("simulate", _simulate, "run simulated vLLM replicas alone"))
    explain = verb("explain", _explain, "say where a request would go and why, sending nothing")
    explain.add_argument("file", metavar="FILE", help="the request's JSON body; - for stdin")
    explain.add_argument("--admin", metavar="URL", help="admin port of a running gateway")
    explain.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="of the request"
    )
    explain.add_argument("--json", action="store_true", help="print JSON instead of a table")
    admin_flags(explain)
    change = verb("replicas", _replicas, "list, add, drain or remove a running gateway's replicas")
    change.add_argument("action", choices=("list", "add", "drain", "remove"))
    change.add_argument("replica", metavar="REPLICA", nargs="?", help="URL to add; else its id")
    change.add_argument("--admin", metavar="URL", help="admin port of a running gateway")
    change.add_argument("--json", action="store_true", help="print JSON")
    admin_flags(change, token=True)
    again = verb("reload", _reload, "have a running gateway read its settings anew")
    again.add_argument("--admin", metavar="URL", help="admin port of a running gateway")
    admin_flags(again, token=True)
    _replay_flags(verb("replay", _replay, "replay a trace through the routing, in simulated time"))
    check = verb("check-config", _check_config, "say whether the settings would serve")
    gateway_flags(check)
    check.add_argument("--probe", action="store_true", help="ask the replicas too")
    show = verb(
        "print-config", _print_config, "print the settings in force, and where each is from"
    )
    gateway_flags(show)
    show.add_argument("--schema", action="store_true", help="print the file's JSON Schema instead")
    health = verb("healthcheck", _healthcheck, "ask a running gateway whether it is ready")
    admin_flags(health)
    health.add_argument(
        "--timeout-s", type=float, default=2.0, metavar="S", help="seconds to wait (default: 2)"
    )
    gateway_flags(verb("doctor", _doctor, "look for what would keep the gateway from serving well"))
    live = verb("top", _top, "show the live numbers of a running gateway; q quits")
    admin_flags(live)
    live.add_argument(
        "--admin", metavar="URL", help="its admin port, in the place of host and port"
    )
    live.add_argument("--once", action="store_true", help="print one screen and exit")
    complete = verb("completion", _completion, "print a shell's completion script")
    complete.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def _parsed(whole: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; a flag that is none ends the process with the one that was probably meant."""
    if argv == [] or (argv is None and len(sys.argv) == 1):
        whole.print_help(sys.stderr)
        whole.exit(2)
    args, left = whole.parse_known_args(argv)
    if left:
        near = difflib.get_close_matches(left[0].partition("=")[0], args.flags(), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        whole.error(f"unrecognized arguments: {' '.join(left)}{meant}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; its exit code: 0 well, 1 not well, 2 wrong settings."""
    args = _parsed(parser(), argv)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        print(f"tokenlane: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code

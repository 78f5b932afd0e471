"""`tokenlane serve` and `demo`: the gateway, in front of a fleet or with one of its own."""

import argparse
import contextlib
import json
import logging

from tokenlane.cli.output import say, say_lines
from tokenlane.config.flags import config_file, loaded, looked, misspelt_variables, setting_flags
from tokenlane.errors import ConfigError

log = logging.getLogger("settings")


def serve(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from tokenlane.control import supervisor
    from tokenlane.control.checks import check_loaded
    from tokenlane.control.reload import Given
    from tokenlane.telemetry.log.setup import setup_logs

    setup_logs("supervisor")
    found = looked(args)
    for told in misspelt_variables():
        log.warning(told)
    if found.problems:
        check_loaded(found)
    given = Given(config_file(args), lambda: loaded(args))
    try:
        return supervisor.serve(found.settings, say, given=given)
    except ConfigError as error:
        raise found.blame(error) from None


def demo_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: all settings except those that the demo's own fleet decides."""
    setting_flags(parser, hidden=("backends", "tokens.folders"))
    parser.add_argument(
        "--replicas", type=int, default=4, metavar="N", help="simulated replicas (default: 4)"
    )
    parser.add_argument(
        "--load",
        action="store_true",
        help="replicas that take their time, and clients that chat and call tools all the while",
    )


def demo(args: argparse.Namespace) -> int:
    """Serve with a simulated fleet until told to stop."""
    from tokenlane.runtime.ports import free_ports
    from tokenlane.simulator import clients
    from tokenlane.simulator.subprocess_fleet import FleetProcess
    from tokenlane.telemetry.log.setup import setup_logs
    from tokenlane.tokens.demo import demo_folder

    setup_logs("supervisor")
    args.config = None
    setattr(args, "tokens.folders", [f"demo={demo_folder()}"])
    if args.replicas < 1:
        raise ConfigError("--replicas must be at least 1")
    flags = clients.FLEET_FLAGS if args.load else ()
    begun = FleetProcess(args.replicas, free_ports(args.replicas), flags)
    begun.start()
    from tokenlane.control import supervisor  # as slow as the fleet's start, so both run at once

    def greet(url: str) -> None:
        say_lines(f"\nTry it:\n\n{curl_line(url)}\n")
        if args.load:
            around.enter_context(clients.running(url))
            say(f"{clients.CHATS} people chat and {clients.AGENTS} agents work: see the page.")
        say("Ctrl-C stops the gateway and its replicas.")
        if not args.load:
            say("With clients, to fill the page: tokenlane demo --load (make run LOAD=--load)")

    with begun as fleet, contextlib.ExitStack() as around:
        args.backends = list(fleet.urls)
        try:
            return supervisor.serve(loaded(args).settings, say, on_ready=greet)
        except ConfigError as error:
            raise ConfigError(f"{error}{_by_make(str(error))}") from None


def _by_make(sentence: str) -> str:
    """Return how to give `make run`, which has no flags, another port."""
    if sentence.endswith("another --admin-port"):
        return " (make run ADMIN_PORT=8091)"
    return " (make run PORT=8090)" if sentence.endswith("another --port") else ""


def curl_line(url: str) -> str:
    """Return a command that asks the demo's gateway, for a shell."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}
    asked = f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\"
    return f"{asked}\n  -d '{json.dumps(body)}'"

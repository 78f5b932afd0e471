"""`tokenlane healthcheck` and `tokenlane top`: how a running gateway is doing."""

import argparse
import json
import sys
from http import HTTPStatus

from tokenlane.cli.admin_client import (
    Unreachable,
    address,
    admin_flag,
    ask,
    shown_if_readable,
)
from tokenlane.cli.verbs.output import say
from tokenlane.config.flags import admin_flags, loaded


def healthcheck_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: where to ask, and how long to wait."""
    admin_flags(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=2.0, metavar="S", help="seconds to wait (default: 2)"
    )


def healthcheck(args: argparse.Namespace) -> int:
    """Return 0 where the gateway is ready, else 1. It needs no token."""
    where = address(None, loaded(args).settings.admin)
    try:
        status, body = ask(where, "GET", "/readyz", timeout_s=args.timeout_s)
    except Unreachable as error:
        return _not_ready(str(error))
    if status == HTTPStatus.OK:
        say("ready")
        return 0
    try:
        return _not_ready(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return _not_ready(f"status {status}")


def _not_ready(why: object) -> int:
    sys.stderr.write(f"not ready: {why}\n")
    return 1


def top_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: where to ask, and whether only once."""
    admin_flags(parser, token=True)
    admin_flag(parser, "the gateway's admin port, instead of host and port")
    parser.add_argument("--once", action="store_true", help="print one screen and exit")


def top(args: argparse.Namespace) -> int:
    """Show the live numbers until told to stop."""
    from tokenlane.cli import top as screen
    from tokenlane.runtime.ports import url_of

    admin = loaded(args).settings.admin
    where = args.admin or url_of(*address(None, admin))
    return screen.top(where, shown_if_readable(admin), once=args.once)

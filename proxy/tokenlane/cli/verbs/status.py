"""`tokenlane healthcheck` and `tokenlane top`: how a running gateway is doing."""

import argparse
import sys

from tokenlane.cli import admin_client
from tokenlane.cli.output import complain, say
from tokenlane.config.flags import looked
from tokenlane.errors import ConfigError

_TIMEOUT_LIMIT_S = 86_400


def healthcheck_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: where to ask, and how long to wait."""
    admin_client.address_flags(parser, token=False)
    parser.add_argument(
        "--timeout-s", type=float, default=2.0, metavar="S", help="seconds to wait (default: 2)"
    )


def healthcheck(args: argparse.Namespace) -> int:
    """Return 0 where the gateway is ready, else 1. It needs no token. Raise ConfigError for a wrong
    flag alone: a gateway serves on when its file breaks, and Docker keeps exit code 2."""
    if not 0 < args.timeout_s <= _TIMEOUT_LIMIT_S:  # nan is neither
        raise ConfigError(f"--timeout-s must be above 0, and at most {_TIMEOUT_LIMIT_S}")
    try:
        admin = admin_client.settings_of(args)
    except ConfigError as error:
        complain(str(error))
        admin = looked(args, with_file=False).settings.admin
    where = admin_client.address(args.admin, admin)
    try:
        admin_client.ask(where, "GET", "/readyz", timeout_s=args.timeout_s)
    except (admin_client.Unreachable, admin_client.ErrorAnswer) as why:
        sys.stderr.write(f"not ready: {why}\n")
        return 1
    say("ready")
    return 0


def top_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: where to ask, and whether only once."""
    admin_client.address_flags(parser)
    parser.add_argument("--once", action="store_true", help="print one screen and exit")


def top(args: argparse.Namespace) -> int:
    """Show the live numbers until told to stop."""
    from tokenlane.cli import top as screen

    admin = admin_client.settings_of(args)
    where = admin_client.address(args.admin, admin)
    return screen.top(where, admin_client.shown_if_readable(admin), once=args.once)

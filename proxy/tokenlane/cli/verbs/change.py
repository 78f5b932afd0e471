"""`tokenlane replicas` and `tokenlane reload`: a running gateway changed over its admin port.

Invariants:
- The token is read where the gateway reads it (`admin.token_file`, or its variable), never from
  the command line, where every user of the machine could see it.
"""

import argparse
import json
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote

from tokenlane.cli import admin_client
from tokenlane.cli.output import complain, say, say_lines
from tokenlane.control.fleet_table import host_of
from tokenlane.errors import ConfigError

_TIMEOUT_S = 30.0
# Method and path of each action; `{}` is the replica.
_ASKED = {
    "list": ("GET", "/replicas"),
    "add": ("POST", "/replicas"),
    "drain": ("POST", "/replicas/{}/drain"),
    "remove": ("DELETE", "/replicas/{}"),
}


class _Row(TypedDict):
    id: str
    origin: str
    draining: bool
    in_flight_requests: int
    up: NotRequired[bool | None]
    removed: NotRequired[bool]


class _Rows(TypedDict):
    replicas: list[_Row]


class _Reloaded(TypedDict):
    outcome: str
    changed: list[str]
    restart: list[str]


def replicas_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: the action, the replica, the gateway."""
    parser.epilog = "add, drain and remove need an admin token: docs/changing.md."
    parser.add_argument("action", choices=tuple(_ASKED), nargs="?", default="list")
    parser.add_argument("replica", metavar="REPLICA", nargs="?", help="its URL, or its id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    admin_client.address_flags(parser, bare=False)


def replicas(args: argparse.Namespace) -> int:
    """Change the replicas. Return 0 where the gateway did so, else 1. Raise ConfigError for a wrong
    command line."""
    if (args.replica is None) != (args.action == "list"):
        raise ConfigError(
            "replicas list takes no replica"
            if args.action == "list"
            else f"replicas {args.action}: which one? Give its"
            + (" URL, http://HOST:PORT" if args.action == "add" else " id, HOST:PORT")
        )
    method, path = _ASKED[args.action]
    body = json.dumps({"url": args.replica}).encode() if args.action == "add" else None
    named = args.replica or ""
    id_ = quote(host_of(named) if "://" in named else named, safe=":[]", errors="surrogateescape")
    kind = _Rows if args.action == "list" else _Row
    told = _ask(args, method, path.format(id_), body, kind)
    if told is None:
        return 1
    if args.json:
        say_lines(json.dumps(told, indent=2))
        return 0
    rows = told["replicas"] if args.action == "list" else [told]
    width = max((len(row["id"]) for row in rows), default=0)
    for row in rows:
        say(f"{row['id']:<{width}}  {_state(row)}  ({row['origin']})")
    return 0


def reload_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: the gateway."""
    admin_client.address_flags(parser)


def reload(args: argparse.Namespace) -> int:
    """Return 0 if the settings that the gateway reloaded are in force, else 1."""
    told = _ask(args, "POST", "/reload", b"", _Reloaded)
    if told is None:
        return 1
    say(f"{told['outcome']}: {', '.join(told['changed']) or 'nothing changed'}")
    if told["restart"]:
        say(f"these need a restart: {', '.join(told['restart'])}")
    return 0


def _state(row: dict[str, Any]) -> str:
    left = f", {row['in_flight_requests']} in flight"
    if row.get("removed"):
        return "removed" + left
    if row["draining"]:
        return "draining" + left
    return {True: "up", False: "down"}.get(row.get("up"), "in the fleet") + left  # type: ignore[arg-type]  # None where it is not known yet


def _ask(
    args: argparse.Namespace, method: str, path: str, body: bytes | None, kind: type
) -> dict[str, Any] | None:
    """Return the gateway's answer, which is of this kind; None, with the reason on stderr, where it
    refuses."""
    admin = admin_client.settings_of(args)
    where = admin_client.address(args.admin, admin)
    headers = {"content-type": "application/json", **admin_client.shown(admin)}
    try:
        told: dict[str, Any] = admin_client.ask(
            where, method, path, timeout_s=_TIMEOUT_S, body=body, headers=headers
        )
        admin_client.understood(told, kind, where)
    except (admin_client.Unreachable, admin_client.ErrorAnswer) as error:
        complain(str(error))
        return None
    return told

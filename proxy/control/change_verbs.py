"""`tokenlane replicas` and `tokenlane reload`: a running gateway changed over its admin port.

Invariants:
- The token is read where the gateway reads it (`admin.token_file`, or its variable), never from
  the command line, where every user of the machine could see it.
"""

import argparse
import http.client
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from proxy.control.explain_verb import admin_address, nobody
from proxy.errors import ConfigError
from proxy.keyring import admin_token
from proxy.settings import AdminSettings

_TIMEOUT_S = 30.0
# Method and path by what is asked; `{}` is the replica.
_ASKED = {
    "list": ("GET", "/replicas"),
    "add": ("POST", "/replicas"),
    "drain": ("POST", "/replicas/{}/drain"),
    "remove": ("DELETE", "/replicas/{}"),
}
ACTIONS = tuple(_ASKED)


def replicas(args: argparse.Namespace, admin: AdminSettings, say: Callable[[str], None]) -> int:
    """0 where the gateway did as asked, else 1. Raises ConfigError for a wrong command line."""
    if (args.replica is None) != (args.action == "list"):
        raise ConfigError(
            "replicas list takes no replica"
            if args.action == "list"
            else f"replicas {args.action}: which one? Give its"
            + (" URL, http://HOST:PORT" if args.action == "add" else " id, HOST:PORT")
        )
    method, path = _ASKED[args.action]
    body = json.dumps({"url": args.replica}).encode() if args.action == "add" else None
    told = ask(args, admin, method, path.format(quote(args.replica or "", safe=":[]")), body)
    if told is None:
        return 1
    if args.json:
        say(json.dumps(told, indent=2))
        return 0
    rows = told["replicas"] if args.action == "list" else [told]
    width = max((len(row["id"]) for row in rows), default=0)
    for row in rows:
        say(f"{row['id']:<{width}}  {_state(row)}  ({row['origin']})")
    return 0


def reload(args: argparse.Namespace, admin: AdminSettings, say: Callable[[str], None]) -> int:
    """0 where the settings that the gateway read anew are in force, else 1."""
    told = ask(args, admin, "POST", "/reload", b"")
    if told is None:
        return 1
    say(f"{told['outcome']}: {', '.join(told['changed']) or 'nothing is different'}")
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


def ask(
    args: argparse.Namespace, admin: AdminSettings, method: str, path: str, body: bytes | None
) -> dict[str, Any] | None:
    """What the gateway answers; None, and why on stderr, where it does not do it."""
    host, port = admin_address(args.admin, admin)
    headers = {"content-type": "application/json"}
    token = admin_token(admin, os.environ)
    if token is not None:
        headers["authorization"] = "Bearer " + token.reveal().decode("ascii")
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"tokenlane: {nobody(host, port, error)}\n")
        return None
    finally:
        connection.close()
    try:
        told: dict[str, Any] = json.loads(answer)
        if response.status < http.client.BAD_REQUEST:
            return told
        why = told["error"]["message"]
    except (ValueError, KeyError, TypeError):
        why = f"status {response.status}"
    sys.stderr.write(f"tokenlane: {why}\n")
    return None

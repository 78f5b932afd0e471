"""`tokenlane explain`: a request to a running gateway's admin port, the answer as a table."""

import argparse
import json
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlencode

from tokenlane.cli import admin_client
from tokenlane.cli.output import complain, say_lines
from tokenlane.errors import ConfigError

_TIMEOUT_S = 15.0


class _Row(TypedDict):
    replica: str
    chosen: bool
    matched_tokens: int
    uncached_tokens: int
    queued_tokens: int
    requests: int
    cost: float


class _LeftOut(TypedDict):
    replica: str
    why: str


class Explained(TypedDict):
    """What a table needs of what `Explainer.explain` makes."""

    model: str | None
    policy: str
    reason: str
    meaning: str
    replica: str
    tokens: int
    exact: bool
    rung: str | None
    blocks: int
    block_tokens: int
    head_tokens: int | None
    session: bool
    panic: bool
    replicas: list[_Row]
    left_out: list[_LeftOut]


def explain_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: the request, and the gateway to ask."""
    parser.add_argument("file", metavar="FILE", help="the request's JSON body; - for stdin")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header of it; once for each",
    )
    parser.add_argument("--path", default="", help="asked for; else what its body is for")
    parser.add_argument("--tenant", default="", help="whose request it is, where there are tenants")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    admin_client.address_flags(parser, bare=False)


def explain(args: argparse.Namespace) -> int:
    """Return 0 where the gateway explained the request, 1 where it refuses it or cannot be reached.
    Raise ConfigError for the operator's mistakes.
    """
    admin = admin_client.settings_of(args)
    headers: dict[str, str | bytes] = {
        "content-type": "application/json",
        **dict(map(_header, args.header)),
        **admin_client.shown_if_readable(admin),
    }
    body = _read(args.file)
    where = admin_client.address(args.admin, admin)
    try:
        about = urlencode({"path": args.path, "tenant": args.tenant}, errors="surrogateescape")
        told = admin_client.ask(
            where, "POST", f"/explain?{about}", timeout_s=_TIMEOUT_S, body=body, headers=headers
        )
        admin_client.understood(told, Explained, where)
    except admin_client.Unreachable as error:
        complain(str(error))
        return 1
    except admin_client.ErrorAnswer as why:
        if why.status == HTTPStatus.UNAUTHORIZED:
            complain(str(why))
        else:
            sys.stderr.write(f"the gateway would refuse this request with {why.status}: {why}\n")
        return 1
    say_lines(json.dumps(told, indent=2) if args.json else table(told))
    return 0


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None


def _header(text: str) -> tuple[str, bytes]:
    """Return name and value. What the shell gave is sent as it is, in UTF-8 or not."""
    name, found, value = (part.strip() for part in text.partition(":"))
    if not found or not name or "\n" in text or "\r" in text:
        raise ConfigError(f"--header {text!r}: must look like 'Name: value'")
    if not name.isascii():
        raise ConfigError(f"--header {text!r}: must have a name in ASCII")
    return name.lower(), value.encode("utf-8", "surrogateescape")


def table(told: Explained) -> str:
    """Return an explanation for people."""
    about = "" if told["exact"] else "about "
    head = [
        (
            f"{told['model'] or 'any model'}: {about}{told['tokens']:,} tokens, {told['blocks']:,}"
            f" full blocks of {told['block_tokens']} (by {told['rung'] or 'its size'})"
        ),
        f"{told['policy']} chooses {told['replica']}: {told['meaning']} ({told['reason']})",
    ]
    if told["session"]:
        head.append("the request names a session")
    if told["head_tokens"]:
        head.append(f"its common beginning is about {told['head_tokens']:,} tokens long")
    if told["panic"]:
        head.append("all replicas refused a connection a moment ago, so all are asked again")
    width = max(len(row["replica"]) for row in told["replicas"])
    head += ["", f"  {'replica':<{width}}    matched   uncached     queued  requests        cost"]
    for row in told["replicas"]:
        head.append(
            f"{'>' if row['chosen'] else ' '} {row['replica']:<{width}}"
            f" {row['matched_tokens']:10,} {row['uncached_tokens']:10,}"
            f" {row['queued_tokens']:10,} {row['requests']:9,} {row['cost']:11,.1f}"
        )
    head += [f"  {row['replica']}: left out, {row['why']}" for row in told["left_out"]]
    return "\n".join(head)

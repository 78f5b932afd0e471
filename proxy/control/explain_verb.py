"""`tokenlane explain`: a request to a running gateway's admin port, the answer as a table."""

import argparse
import http.client
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxy.errors import ConfigError
from proxy.settings import AdminSettings

_TIMEOUT_S = 15.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def run(args: argparse.Namespace, admin: AdminSettings, say: Callable[[str], None]) -> int:
    """0 where the gateway explained the request, 1 where it refuses it or cannot be asked.

    Raises ConfigError for what the operator got wrong.
    """
    headers = {"content-type": "application/json", **dict(map(_header, args.header))}
    body = _read(args.file)
    host, port = admin_address(args.admin, admin)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", "/explain", body, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"tokenlane: {nobody(host, port, error)}\n")
        return 1
    finally:
        connection.close()
    try:
        told = json.loads(answer)
    except ValueError:
        told = {}
    if response.status != http.client.OK:
        why = told.get("error", {}).get("message") or f"status {response.status}"
        sys.stderr.write(f"the gateway would refuse this request with {response.status}: {why}\n")
        return 1
    if args.json:
        say(json.dumps(told, indent=2))
        return 0
    say(table(told))
    return 0


def nobody(host: str, port: int, error: Exception) -> str:
    """What to say where no gateway answers."""
    why = getattr(error, "strerror", None) or error
    return (
        f"no gateway answers at {host}:{port} ({why}); is it running, and is this its admin port?"
    )


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition(":")
    if not found or not name.strip() or "\n" in text or "\r" in text:
        raise ConfigError(f"--header {text!r}: must look like 'Name: value'")
    return name.strip(), value.strip()


def admin_address(url: str | None, admin: AdminSettings) -> tuple[str, int]:
    """Where the admin port is: as the URL says, else as the settings do. Raises ConfigError."""
    port = admin.port
    if not url:
        return _ANY.get(admin.host, admin.host), port
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.scheme not in {"", "http"} or not parts.hostname:
            raise ValueError
        return parts.hostname, parts.port or port
    except ValueError:
        raise ConfigError(f"--admin {url!r}: must look like http://HOST:PORT") from None


def table(told: dict[str, Any]) -> str:
    """An explanation for people. told: what `Explainer.explain` makes."""
    about = "" if told["exact"] else "about "
    head = [
        (
            f"{told['model'] or 'any model'}: {about}{told['tokens']:,} tokens, {told['blocks']:,}"
            f" full blocks of {told['block_tokens']} (by {told['rung']})"
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

"""How a verb asks a running gateway: the address of its admin port, and one exchange with it."""

import argparse
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from tokenlane.config.keyring import admin_token
from tokenlane.config.settings import AdminSettings
from tokenlane.errors import ConfigError

Address = tuple[str, int]
# The address that reaches a listener on all addresses of this machine.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Unreachable(Exception):
    """No gateway answers; one sentence for the operator."""


def admin_flag(parser: argparse.ArgumentParser, about: str) -> None:
    """Add `--admin`: the port's URL, instead of the address in the settings."""
    parser.add_argument("--admin", metavar="URL", help=about)


def address(url: str | None, admin: AdminSettings) -> Address:
    """Return the admin port's address: from the URL, or else from the settings. Raise
    ConfigError."""
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


def shown(admin: AdminSettings) -> dict[str, str]:
    """Return the header with the admin token, where there is one. Raise ConfigError."""
    token = admin_token(admin, os.environ)
    return {} if token is None else {"authorization": f"Bearer {token.reveal().decode('ascii')}"}


def shown_if_readable(admin: AdminSettings) -> dict[str, str]:
    """Return the same for a reader, which mostly needs none: a user who may not read the token's
    file does without."""
    try:
        return shown(admin)
    except ConfigError:
        return {}


def ask(
    where: Address,
    method: str,
    path: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return the answer's status and body. Raise Unreachable."""
    import http.client  # noqa: PLC0415 - with TLS and e-mail behind it: most verbs ask nobody

    host, port = where
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error
        raise Unreachable(
            f"no gateway answers at {host}:{port} ({why});"
            " is it running, and is this its admin port?"
        ) from None
    finally:
        connection.close()

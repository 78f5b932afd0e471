"""How a verb asks a running gateway: the address of its admin port, and one exchange with it."""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from tokenlane.config.flags import admin_flags, looked
from tokenlane.config.keyring import admin_token
from tokenlane.config.settings import AdminSettings
from tokenlane.errors import ConfigError
from tokenlane.runtime.ports import split_url, url_of

_T = TypeVar("_T")
# The address that reaches a listener on all addresses of this machine.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Unreachable(Exception):
    """No gateway answers; one sentence for the operator."""


class ErrorAnswer(Exception):
    """The gateway answers with an error; its sentence. status: HTTP's. code: the gateway's own."""

    def __init__(self, status: int, answer: bytes) -> None:
        try:
            error = json.loads(answer)["error"]
            why, self.code = error["message"], error["code"]
        except (ValueError, KeyError, TypeError):
            why, self.code = f"status {status}", "not_found"
        super().__init__(why)
        self.status = status


def address_flags(
    parser: argparse.ArgumentParser, *, token: bool = True, bare: bool = True
) -> None:
    """Add the flags that find the admin port, and its token. bare: as in `config_flag`."""
    about = "the gateway's admin port, instead of host and port"
    parser.add_argument("--admin", metavar="URL", help=about)
    admin_flags(parser, token=token, bare=bare)


def settings_of(args: argparse.Namespace) -> AdminSettings:
    """Return the settings that find the admin port. Raise ConfigError where these are wrong: of
    other mistakes a running gateway makes nothing, nor does who asks it."""
    found = looked(args)
    return (found if found.is_sound("admin") else found.sound()).settings.admin


def address(url: str | None, admin: AdminSettings) -> str:
    """Return the admin port's URL: the one given, or else that of the settings. Raise
    ConfigError."""
    if not url:
        return url_of(_ANY.get(admin.host, admin.host), admin.port)
    parts, port = split_url(url if "//" in url else f"//{url}")
    scheme = parts.scheme or "http"
    if scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--admin {url!r}: must look like http://HOST:PORT")
    port = port or (443 if scheme == "https" else admin.port)
    return url_of(parts.hostname, port, scheme) + parts.path.rstrip("/")


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
    where: str,
    method: str,
    path: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    headers: Mapping[str, str | bytes] | None = None,
) -> Any:
    """Return the answer, decoded. Follows no redirects, and no proxy of the environment. Raise
    Unreachable or ErrorAnswer."""
    import http.client  # noqa: PLC0415 - with TLS and e-mail behind it: most verbs ask nobody

    try:
        at = urlsplit(where)
        secure = at.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        with closing(kind(at.netloc, timeout=timeout_s)) as connection:
            connection.request(method, at.path + path, body, headers or {})
            response = connection.getresponse()
            status, answer = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error
        raise Unreachable(
            f"no gateway answers at {where} ({why}); is it running, and is this its admin port?"
        ) from None
    except ValueError as error:
        raise Unreachable(
            f"no gateway can be asked at {where} ({error}); it must look like http://HOST:PORT"
        ) from None
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        error_answer = ErrorAnswer(status, answer)
        if (status, error_answer.code) == (HTTPStatus.NOT_FOUND, "not_found"):
            raise _somebody_else(where)
        raise error_answer
    try:
        return json.loads(answer)
    except ValueError:
        raise ErrorAnswer(status, answer) from None


def understood(answer: Any, kind: type[_T], where: str) -> _T:
    """Return an answer as what a gateway says. Raise Unreachable where somebody else answers."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError:
        raise _somebody_else(where) from None


def _somebody_else(where: str) -> Unreachable:
    return Unreachable(f"{where} answers with something else: is it the admin port of a gateway?")

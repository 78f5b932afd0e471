"""What the admin port answers with: JSON, and errors in OpenAI's shape."""

from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from tokenlane.errors import error_body


def answer(value: Any, status: int = 200) -> web.Response:
    """A value as JSON."""
    body = msgspec.json.format(msgspec.json.encode(value)) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")


def refusal(
    status: int, message: str, code: str, headers: dict[str, str] | None = None
) -> web.Response:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return web.Response(
        body=error_body(message, kind, code=code),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a client takes answers in gzip (RFC 9110 12.5.3)."""
    for offer in accept_encoding.lower().split(","):
        coding, _, weight = offer.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or not weight
    return False

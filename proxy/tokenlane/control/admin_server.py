"""The admin port's HTTP: which hosts and readers it admits, and one shape for all errors.

Invariants:
- Errors have OpenAI's shape, those of a request that is none too, and repeat nothing of it.
- What a peer does wrong leaves nothing in the log; what went wrong here leaves a traceback.
- No handler waits for a body: it is read before, by its deadline. Where a chunked body breaks off
  in the middle, aiohttp keeps its reader waiting, also when the peer has left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_answers import refusal

log = logging.getLogger("admin")

_MALFORMED = (web.RequestPayloadError, HttpProcessingError)
_BODY_DEADLINE_S = 10.0
_Handler = Callable[[Any], Awaitable[web.StreamResponse]]


def _malformed() -> web.Response:
    return refusal(400, "This is no request that the admin port understands.", "bad_request")


def _broken() -> web.Response:
    return refusal(500, "The admin port failed at this; its log says where.", "internal_error")


@web.middleware
async def _with_body(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        async with asyncio.timeout(_BODY_DEADLINE_S):
            await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    return await handler(request)


def _guarded(access: AdminAccess, handler: _Handler) -> _Handler:
    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return access.refused(request) or await handler(request)
        except web.HTTPException as raised:
            allow = {"Allow": raised.headers["Allow"]} if "Allow" in raised.headers else None
            phrase = HTTPStatus(raised.status).phrase
            code = phrase.lower().replace(" ", "_")
            return refusal(raised.status, f"{phrase} on the admin port.", code, allow)
        except _MALFORMED:
            return _malformed()
        except ConnectionError:
            raise
        except Exception:
            log.exception("%s failed", request.path)
            return _broken()

    return guarded


class _Connection(web.RequestHandler):
    """A peer's connection. Its own errors are of requests that are none."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc  # the peer left
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("an answer failed", exc_info=exc)
            made = _broken()
        else:
            made = _malformed()
        made.force_close()
        return made

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Says what went wrong here; what is wrong with a body that nobody read any more is the
        peer's."""
        if not isinstance(kw.get("exc_info"), _MALFORMED):
            super().log_exception(*args, **kw)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class AdminRunner(web.AppRunner):
    """Serves the application behind the admin port to whom `access` lets in."""

    def __init__(self, app: web.Application, access: AdminAccess, **kwargs: Any) -> None:
        app.middlewares.append(_with_body)
        super().__init__(app, access_log=None, **kwargs)
        self._access = access

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            _guarded(self._access, made.request_handler),
            request_factory=made.request_factory,
            **self._kwargs,
        )

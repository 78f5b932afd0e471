"""The admin port: what the gateway knows about itself, to read.

Invariants:
- Every answer is made from memory: no request here waits for a worker or a replica, but
  `POST /explain`, which asks a worker.
- Nothing can be changed here but by the routes of tokenlane.control.changes.
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from aiohttp import web

from tokenlane.channel.messages import Explain
from tokenlane.control.admin_answers import answer, refusal, takes_gzip
from tokenlane.control.dashboard.page import page_routes
from tokenlane.control.dashboard.stall_page import page, wants_page
from tokenlane.control.dashboard.view import View
from tokenlane.telemetry.metrics.exposition import CONTENT_TYPE

# Travels to a worker in one frame of the channel.
EXPLAIN_LIMIT_BYTES = 8 * 1024 * 1024


def admin_app(view: View, more: Iterable[web.RouteDef] = ()) -> web.Application:
    """The application behind the admin port. more: routes besides those that show."""

    async def metrics(request: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        body = view.exposition.text()
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            headers["Content-Encoding"] = "gzip"
            body = await asyncio.to_thread(gzip.compress, body, 1)
        return web.Response(body=body, headers=headers)

    def shown(make: Callable[[], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def show(_: web.Request) -> web.Response:
            return answer(make())

        return show

    async def readyz(_: web.Request) -> web.Response:
        why = view.unready()
        if why is None:
            return answer({"status": "ok"})
        return refusal(503, why, "not_ready", {"Retry-After": "1"})

    async def stalls(request: web.Request) -> web.Response:
        view_now = view.stalls()
        if wants_page(request.headers.get("Accept", ""), request.query.get("format")):
            return web.Response(text=page(view_now), content_type="text/html")
        return answer(view_now)

    app = web.Application(client_max_size=EXPLAIN_LIMIT_BYTES)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", shown(lambda: {"status": "ok"}))
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status.json", shown(view.status))
    app.router.add_get("/replicas", shown(lambda: {"replicas": view.replicas()}))
    app.router.add_routes(page_routes(view.live, view.watch.flows.hour))
    app.router.add_get("/stalls", stalls)
    app.router.add_post("/explain", partial(explain, view))
    app.router.add_routes(more)
    return app


async def explain(view: View, request: web.Request) -> web.Response:
    """Answer where the request in the body would go."""
    body = await request.read()
    headers = tuple(
        (name.lower().encode("latin-1", "replace"), value.encode("utf-8", "surrogateescape"))
        for name, value in request.headers.items()
        if name.lower() != "authorization"  # the admin token, and no worker's to know
    )
    try:
        asked = Explain(
            headers, body, request.query.get("path", ""), request.query.get("tenant", "")
        )
        code, told = await view.explain(asked)
    except ConnectionError:
        return refusal(503, "No worker is ready.", "not_ready", {"Retry-After": "1"})
    except TimeoutError:
        return refusal(504, "The worker did not answer in time.", "worker_timeout")
    return web.Response(body=told, status=code, content_type="application/json")

"""The live page: four files and the numbers they show.

Invariants:
- The page asks for nothing from anywhere else, and its Content-Security-Policy says so.
- Addresses in it are relative: it works behind a path of somebody's reverse proxy.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from tokenlane.control.dashboard.live import Live

FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/drawing.js": ("drawing.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _file(name: str, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = (Path(__file__).parent / "assets" / name).read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return serve


def page_routes(live: Callable[[], Live]) -> list[web.RouteDef]:
    """The page's routes. live: called for each look."""

    async def serve(_: web.Request) -> web.Response:
        body = msgspec.json.encode(live())
        return web.Response(
            body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
        )

    routes = [web.get(path, _file(*how)) for path, how in FILES.items()]
    return [*routes, web.get("/live.json", serve)]

"""The live page: four files and the numbers they show.

Invariants:
- The page asks for nothing from anywhere else, and its Content-Security-Policy says so.
- Addresses in it are relative: it works behind a path of somebody's reverse proxy.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from tokenlane.control.dashboard.live import Hour, Live

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


Handler = Callable[[web.Request], Awaitable[web.Response]]


def _file(name: str, content_type: str) -> Handler:
    body = (Path(__file__).parent / "assets" / name).read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return serve


def page_routes(live: Callable[[], Live], hour: Callable[[], Hour]) -> list[web.RouteDef]:
    """Return the page's routes. live, hour: called for each look."""

    def numbers(look: Callable[[], msgspec.Struct]) -> Handler:
        async def serve(_: web.Request) -> web.Response:
            body, headers = msgspec.json.encode(look()), {"Cache-Control": "no-store"}
            return web.Response(body=body, content_type="application/json", headers=headers)

        return serve

    routes = [web.get(path, _file(*how)) for path, how in FILES.items()]
    return [*routes, web.get("/live.json", numbers(live)), web.get("/hour.json", numbers(hour))]

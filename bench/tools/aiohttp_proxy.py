"""The baseline: a plain reverse proxy of aiohttp's server and client on uvloop, round robin.

It is written to be fast within what aiohttp offers: the low-level server without a router, no
access log, no limits, no cookies, no decompression, and bodies whose length is known and small
pass in one piece. It reads no prompt, keeps no metric and never retries.
"""

import argparse
import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import uvloop
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

HOP_BY_HOP = frozenset(
    "connection host keep-alive proxy-authenticate proxy-authorization te trailer "
    "transfer-encoding upgrade".split()
)
WHOLE_LIMIT_BYTES = 64 * 1024


def forwarded(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers that pass a proxy."""
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP
    )


def small(length: int | None) -> bool:
    """Whether a body is known to be short enough to pass in one piece."""
    return length is not None and length <= WHOLE_LIMIT_BYTES


def proxy(
    session: aiohttp.ClientSession, upstreams: Sequence[str]
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """The handler: one upstream after the other."""
    turn = itertools.cycle(upstreams)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body: bytes | aiohttp.StreamReader | None = None
        if request.can_read_body:
            body = await request.read() if small(request.content_length) else request.content
        async with session.request(
            request.method,
            next(turn) + request.path_qs,
            headers=forwarded(request.headers),
            data=body,
            allow_redirects=False,
        ) as upstream:
            headers = forwarded(upstream.headers)
            if small(upstream.content_length):
                whole = await upstream.read()
                return web.Response(status=upstream.status, headers=headers, body=whole)
            answer = web.StreamResponse(status=upstream.status, headers=headers)
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    return handle


async def serve(port: int, upstreams: Sequence[str]) -> None:
    """Serves on the loopback port until cancelled."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    async with aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
    ) as session:
        server = web.Server(proxy(session, upstreams), access_log=None, keepalive_timeout=3600)
        runner = web.ServerRunner(server)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def main() -> None:
    """Command line: --port and one --backend per upstream."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tools.aiohttp_proxy", description=__doc__
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", action="append", required=True, metavar="URL")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.backend))


if __name__ == "__main__":
    main()

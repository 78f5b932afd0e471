"""A Kubernetes API server, as far as endpoint slices go: lists in pages, watches, bookmarks,
tokens, and a history that it forgets. Over TLS, where a context is given."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
SERVICE = "kubernetes.io/service-name"


def slice_of(name: str, *addresses: str, service: str = "vllm", ready: bool = True) -> Any:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "ns", "labels": {SERVICE: service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8000}],
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": ready}} for address in addresses
        ],
    }


class ApiServer:
    """slices: by name. history: (version, event), in order; what is older than `oldest` is
    forgotten. asked: the queries so far, lists and watches. brief: watches end at once."""

    def __init__(self, token: str = "", page_limit: int = 500) -> None:
        self.token = token
        self.page_limit = page_limit
        self.version = 100
        self.oldest = 100
        self.slices: dict[str, Any] = {}
        self.history: list[tuple[int, str, Any]] = []
        self.asked: list[dict[str, str]] = []
        self.news = asyncio.Event()
        self.watching = 0
        self.brief = False
        self.url = ""

    def _tell(self, kind: str, value: Any) -> None:
        self.version += 1
        value = {**value, "metadata": {**value["metadata"], "resourceVersion": str(self.version)}}
        if kind == "DELETED":
            del self.slices[value["metadata"]["name"]]
        elif kind != "BOOKMARK":
            self.slices[value["metadata"]["name"]] = value
        self.history.append((self.version, kind, value))
        self.news.set()
        self.news = asyncio.Event()

    def put(self, value: Any) -> None:
        """Creates a slice, or replaces it."""
        known = value["metadata"]["name"] in self.slices
        self._tell("MODIFIED" if known else "ADDED", value)

    def delete(self, name: str) -> None:
        self._tell("DELETED", self.slices[name])

    def bookmark(self) -> None:
        self._tell("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def forget(self) -> None:
        """Compaction: nothing before now is known any more, and watches are cut."""
        self.oldest = self.version = self.version + 10
        self.history.clear()
        self.cut()

    def cut(self) -> None:
        """Ends all watches."""
        self.history.append((0, "CUT", None))
        self.news.set()
        self.news = asyncio.Event()

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response(_status(401, "Unauthorized"), status=401)
        return None

    async def _slices(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        refused = self._refused(request)
        if refused is not None:
            return refused
        label, _, service = request.query["labelSelector"].partition("=")
        assert label == SERVICE
        if request.query.get("watch") == "1":
            return await self._watch(request, service)
        mine = [
            one
            for _, one in sorted(self.slices.items())
            if one["metadata"]["labels"][SERVICE] == service
        ]
        at = int(request.query.get("continue", "0"))
        limit = min(int(request.query.get("limit", "500")), self.page_limit)
        metadata = {"resourceVersion": str(self.version)}
        if at + limit < len(mine):
            metadata["continue"] = str(at + limit)
        items = mine[at : at + limit]
        return web.json_response(
            {"kind": "EndpointSliceList", "metadata": metadata, "items": items}
        )

    async def _watch(self, request: web.Request, service: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self.oldest:
            error = {"type": "ERROR", "object": _status(410, "too old resource version")}
            await response.write(json.dumps(error).encode() + b"\n")
            return response
        if self.brief:
            return response
        self.watching += 1
        try:
            seen = next((at for at, row in enumerate(self.history) if row[0] > since), None)
            at = len(self.history) if seen is None else seen
            while True:
                news = self.news
                for version, kind, value in self.history[at:]:
                    if kind == "CUT":
                        return response
                    labels = value["metadata"].get("labels", {SERVICE: service})
                    if version > since and labels[SERVICE] == service:
                        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
                        # In two pieces: a line may come in any.
                        await response.write(line[:20])
                        await response.write(line[20:])
                at = len(self.history)
                await news.wait()
        finally:
            self.watching -= 1


def _status(code: int, message: str) -> Any:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}


@asynccontextmanager
async def serving(server: ApiServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """On a port of its own, as long as the context lasts."""
    app = web.Application()
    app.router.add_get(PATH, server._slices)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener, ssl_context=tls).start()
    scheme = "https" if tls is not None else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield
    finally:
        server.cut()
        await runner.cleanup()

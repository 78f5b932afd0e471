"""A collector: takes OTLP over HTTP on a real port and decodes it by the published protocol."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def value(attributes: Any, name: str) -> Any:
    """An attribute's value; None where there is none."""
    for attribute in attributes:
        if attribute.key == name:
            return getattr(attribute.value, attribute.value.WhichOneof("value"))
    return None


class Collector:
    """status: what it answers. spans: all it took. services: the resources they came from."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Span] = []
        self.services: set[tuple[str, str]] = set()
        self.url = ""

    def take(self, body: bytes) -> None:
        """One export."""
        asked = ExportTraceServiceRequest()
        asked.ParseFromString(body)
        for of_resource in asked.resource_spans:
            attributes = of_resource.resource.attributes
            instance = value(attributes, "service.instance.id")
            self.services.add((value(attributes, "service.name"), instance))
            for scope in of_resource.scope_spans:
                assert scope.scope.name == "tokenlane"
                self.spans.extend(scope.spans)

    def of(self, name: str) -> list[Span]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            if collector.status == 200:
                collector.take(body)
            self.send_response(collector.status)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

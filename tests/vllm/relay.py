"""A relay that stands between the gateway and a replica and keeps what the replica sent."""

import contextlib
import http.client
import io
import socket
import threading
from typing import cast


class RecordingRelay:
    """Listens on 127.0.0.1:`port`, forwards to `target_port`, records per connection."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._recorded: list[bytearray] = []
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def answers(self) -> list[bytes]:
        """Bodies of all recorded answers, dechunked, connection by connection."""
        with self._lock:
            streams = [bytes(one) for one in self._recorded]
        return [body for stream in streams for body in _bodies(stream)]

    def close(self) -> None:
        """Ends the listener and all connections."""
        with self._lock:
            ending = [self._listener, *self._open]
        for one in ending:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return
            kept = bytearray()
            with self._lock:
                self._recorded.append(kept)
                self._open += [client, server]
            for source, sink, record in ((client, server, None), (server, client, kept)):
                threading.Thread(
                    target=self._pump, args=(source, sink, record), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if record is not None:
                    with self._lock:
                        record += data
                sink.sendall(data)
        # The other half may still be talking: pass on the end only.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _Recorded:
    """What http.client wants of a socket."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BytesIO:
        """The recording itself, which goes on behind this answer."""
        del mode
        return _Unclosed(self._stream)


class _Unclosed(io.BytesIO):
    """Reads from a stream that another answer continues to read."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__()
        self._inner = stream

    def read(self, size: int | None = -1) -> bytes:
        return self._inner.read(size)

    def read1(self, size: int | None = -1) -> bytes:
        return self._inner.read1(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._inner.readline(size)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        return self._inner.readinto(buffer)


def _bodies(stream: bytes) -> list[bytes]:
    reader = io.BytesIO(stream)
    bodies = []
    while reader.tell() < len(stream):
        answer = http.client.HTTPResponse(cast(socket.socket, _Recorded(reader)))
        answer.begin()
        bodies.append(answer.read())
    return bodies

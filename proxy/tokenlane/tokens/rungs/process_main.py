"""A tokenizer process: a blocking loop on a socket, and nothing else.

    python -m tokenlane.tokens.rungs.process_main FD

Invariants:
- No event loop, no thread of its own: one job after another, in order of arrival.
- It ends when its socket does; so it never outlives the gateway.
- Where cores are scarce it gives way to the loops, because its jobs are long.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from tokenlane.config.settings import TokenSettings
from tokenlane.errors import ConfigError
from tokenlane.runtime import malloc_arenas
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.rungs.job_frames import LENGTHS, Asked, JobReady, Start, body, frame, made
from tokenlane.tokens.tokenizer import Tokenizer

_NICENESS = 10


def _exactly(stream: BinaryIO, size_bytes: int) -> bytes:
    data = stream.read(size_bytes)
    if len(data) < size_bytes:
        raise EOFError
    return data


def _next(stream: BinaryIO) -> tuple[bytes, bytes]:
    head_bytes, payload_bytes = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    return _exactly(stream, head_bytes), _exactly(stream, payload_bytes)


def serve(sock: socket.socket) -> None:
    """Serve jobs until the other end closes."""
    stream = sock.makefile("rb")
    start = msgspec.msgpack.decode(_next(stream)[0], type=Start)
    settings = msgspec.msgpack.decode(start.settings, type=TokenSettings)
    models, budgets = {}, CacheBudgets.of(settings)
    for model, folder in start.folders.items():
        tokenizer = Tokenizer.load(model, Path(folder), fast=settings.fast_engines)
        tokenizer.encode("warm up", add_special_tokens=True)
        models[model] = LoadedModel(tokenizer, Speed(), TokenCaches.of(budgets))
    malloc_arenas.settle()
    sock.sendall(b"".join(frame(JobReady())))
    while True:
        head, payload = _next(stream)
        asked = msgspec.msgpack.decode(head, type=Asked)
        for part in made(asked.number, _tokenized(asked, payload, models[asked.model])):
            sock.sendall(part)


def _tokenized(asked: Asked, payload: bytes, model: LoadedModel) -> Tokenized:
    try:
        request = body(asked.kind, payload)
    except Exception as problem:  # noqa: BLE001 - it is the result
        return Tokenized.failed(problem, 0.0)
    job = TokenJob(
        model,
        request,
        key=b"",
        size_bytes=asked.size_bytes,
        block_tokens=asked.block_tokens,
        salt=asked.salt,
        limit_tokens=asked.limit_tokens,
    )
    return job.run()


def main() -> int:
    """Run the process. Ignore a terminal's Ctrl-C and the SIGHUP of a reload, which the gateway
    handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(_NICENESS)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        sock.setblocking(True)
        try:
            serve(sock)
        except (EOFError, ConnectionError):
            pass  # the gateway is gone, or no longer needs this process
        except ConfigError as error:
            sys.stderr.write(f"tokenizer process: {error}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

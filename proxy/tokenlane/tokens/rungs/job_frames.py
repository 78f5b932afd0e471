"""Frames between the gateway and its tokenizer processes: a small header and raw bytes.

Invariants:
- A frame is two lengths (little-endian uint32), a msgpack header and the payload, a body; ids
  are bytes in it, and never a list of ints.
"""

import struct
from typing import Any, Final

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import ABSENT, BODIES, Kind, OtherBody, Prompted
from tokenlane.tokens.job import Tokenized, TokenJob

LENGTHS = struct.Struct("<II")
KINDS: dict[Kind, type[Prompted]] = {
    kind: body for kind, body in BODIES.items() if not issubclass(body, OtherBody)
}

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, memoryview]).decode


class Start(msgspec.Struct):
    """The first message to the process. folders: by model name."""

    folders: dict[str, str]
    settings: bytes


class JobReady(msgspec.Struct):
    """The first message from the process: its tokenizers are loaded."""


class Asked(msgspec.Struct):
    """A job; its payload is those of the body's fields that are raw JSON, as msgpack."""

    number: int
    model: str
    kind: Kind
    size_bytes: int
    block_tokens: int
    salt: bytes
    limit_tokens: int


class Made(msgspec.Struct):
    """A job's result, or what there is instead of ids: unrenderable, or the fields of a
    RequestError."""

    number: int
    seconds: float
    prompt: Prompt | None = None
    unrenderable: str = ""
    refused: dict[str, Any] | None = None


def frame(header: msgspec.Struct, payload: bytes = b"") -> tuple[bytes, bytes]:
    """Return the bytes of a frame: what stands before the payload, and the payload."""
    head = msgspec.msgpack.encode(header)
    return LENGTHS.pack(len(head), len(payload)) + head, payload


def asked(number: int, job: TokenJob) -> tuple[bytes, bytes]:
    """Return the frame of a job."""
    header = Asked(
        number,
        job.model.tokenizer.model,
        next(kind for kind, body in KINDS.items() if isinstance(job.body, body)),
        job.size_bytes,
        job.block_tokens,
        job.salt,
        job.limit_tokens,
    )
    return frame(header, _encode(_raw_fields(job.body)))


def _raw_fields(body: Prompted) -> dict[str, memoryview]:
    """Return what a job reads. Nothing is parsed: a field that the job never reads must not end
    it."""
    return {
        name: memoryview(raw)
        for name, raw in msgspec.structs.asdict(body).items()
        if isinstance(raw, msgspec.Raw) and raw is not ABSENT
    }


def body(kind: Kind, payload: bytes) -> Prompted:
    """Return the body of a job's frame, as far as a job reads it."""
    fields: dict[str, Any] = {name: msgspec.Raw(raw) for name, raw in _decode(payload).items()}
    return KINDS[kind](**fields)


def made(number: int, result: Tokenized) -> tuple[bytes, bytes]:
    """Return the frame of a result."""
    header, error = Made(number, result.seconds, result.prompt), result.error
    if isinstance(error, RequestError):
        names = ("status", "message", "kind", "code", "param")
        header.refused = {name: getattr(error, name) for name in names}
    elif error is not None:
        header.unrenderable = error.reason
    return frame(header)


def result(header: Made) -> Tokenized:
    """Return the result that a frame of `made` holds."""
    error: RequestError | Unrenderable | None = None
    if header.refused is not None:
        error = RequestError(**header.refused)
    elif header.unrenderable:
        error = Unrenderable(header.unrenderable)
    return Tokenized(header.prompt, error, header.seconds)

"""Frames between the gateway and its tokenizer processes: a small header and raw bytes.

Invariants:
- A frame is two lengths (little-endian uint32), a msgpack header and the payload; nothing in a
  payload is ever copied into a list of ints.
"""

import struct

import msgspec

from tokenlane.errors import RequestError
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import (
    ChatBody,
    CompletionBody,
    Kind,
    MessagesBody,
    Prompted,
    ResponsesBody,
)
from tokenlane.protocols.prompt_fields import Unrenderable
from tokenlane.tokens.job import Tokenized, TokenJob

LENGTHS = struct.Struct("<II")
KINDS: dict[Kind, type[Prompted]] = {
    Kind.CHAT: ChatBody,
    Kind.COMPLETION: CompletionBody,
    Kind.MESSAGES: MessagesBody,
    Kind.RESPONSES: ResponsesBody,
}


class Start(msgspec.Struct):
    """The first message to the process. folders: by model name."""

    folders: dict[str, str]
    settings: bytes


class JobReady(msgspec.Struct):
    """The first message from the process: its tokenizers are loaded."""


class Asked(msgspec.Struct):
    """A job; its payload is the body as JSON, as far as it was read."""

    number: int
    model: str
    kind: Kind
    size_bytes: int
    block_tokens: int
    salt: bytes
    limit_tokens: int


class Made(msgspec.Struct):
    """A job's result; its payload is the ids of each sequence, then the block hashes.

    unrenderable, or the fields of a RequestError, where there are no ids.
    """

    number: int
    seconds: float
    sequences_bytes: list[int] = []
    block_tokens: int = 0
    unrenderable: str = ""
    status: int = 0
    message: str = ""
    kind: str = ""
    code: str | int | None = None
    param: str | None = None


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
    return frame(header, msgspec.json.encode(job.body))


def made(number: int, result: Tokenized) -> tuple[bytes, bytes]:
    """Return the frame of a result."""
    prompt, error = result.prompt, result.error
    if prompt is not None:
        lengths = [len(ids) for ids in prompt.sequences]
        header = Made(number, result.seconds, lengths, prompt.block_tokens)
        return frame(header, b"".join((*prompt.sequences, prompt.blocks)))
    header = Made(number, result.seconds)
    if isinstance(error, RequestError):
        header.status, header.message, header.kind = error.status, error.message, error.kind
        header.code, header.param = error.code, error.param
    else:
        header.unrenderable = error.reason if error is not None else "json"
    return frame(header)


def result(header: Made, payload: bytes) -> Tokenized:
    """Return the result that a frame of `made` holds."""
    error: RequestError | Unrenderable | None = None
    if header.unrenderable:
        error = Unrenderable(header.unrenderable)
    elif header.status:
        error = RequestError(
            header.status, header.message, kind=header.kind, code=header.code, param=header.param
        )
    if error is not None:
        return Tokenized(None, error, header.seconds)
    sequences, at = [], 0
    for length in header.sequences_bytes:
        sequences.append(payload[at : at + length])
        at += length
    prompt = Prompt(tuple(sequences), payload[at:], header.block_tokens, at // 4)
    return Tokenized(prompt, None, header.seconds)

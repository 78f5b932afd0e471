"""Streams of named events, as vLLM writes them, for tests to cut."""

import json
from typing import Any

from tests.raw import MESSAGES, RESPONSES
from tokenlane.protocols.dialects import Dialect


def event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def delta(text: str) -> bytes:
    return event("content_block_delta", delta={"type": "text_delta", "text": text}, index=0)


def words(text: str) -> bytes:
    return event("response.output_text.delta", delta=text, sequence_number=4)


START = event("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}})
OPEN = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
CLOSE = event("content_block_stop", index=0)
LAST = event(
    "message_delta",
    delta={"stop_reason": "end_turn", "stop_sequence": None},
    usage={"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 8},
)
ABORTED = event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 0})
STOP = event("message_stop")
ERROR = event("error", error={"type": "internal_error", "message": "dead"})
REFUSED = event("error", error={"type": "invalid_request_error", "message": "no"})
PING = event("ping")

CREATED = event("response.created", response={"status": "in_progress", "usage": None})
ADDED = event("response.output_item.added", item={"type": "message"})
DONE = event("response.output_text.done", text="so it goes")
_USAGE = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 2}
COMPLETED = event("response.completed", response={"status": "completed", "usage": _USAGE})
INCOMPLETE = event("response.incomplete", response={"status": "incomplete", "usage": _USAGE})
FAILED = event("response.failed", response={"status": "failed"})

STREAMS: dict[Dialect, tuple[bytes, ...]] = {
    Dialect.MESSAGES: (START, OPEN, delta("so"), delta(" it goes"), CLOSE, LAST, STOP),
    Dialect.RESPONSES: (CREATED, ADDED, words("so"), words(" it goes"), DONE, COMPLETED),
}
PATHS = {Dialect.MESSAGES: MESSAGES, Dialect.RESPONSES: RESPONSES}
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
    RESPONSES: {"input": "hello"},
}

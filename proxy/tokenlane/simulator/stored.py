"""Responses that a replica keeps, to be asked for and gone on from: vLLM does, where it was started
with VLLM_ENABLE_RESPONSES_API_STORE=1.

Invariants:
- A replica knows its own alone; of those the last ones, so that memory is bounded.
- As in vLLM, instructions are each request's own and are not carried on.
"""

import json
from typing import Any

import msgspec
from cachetools import FIFOCache

from tokenlane.simulator import vllm_errors

_LIMIT_COUNT = 1000

Item = dict[str, Any]


class _Names(msgspec.Struct):
    previous_response_id: str | None = None


class StoredResponses:
    """The stored responses of one replica. on: whether it keeps any."""

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._kept: FIFOCache[str, tuple[list[Item], bytes]] = FIFOCache(_LIMIT_COUNT)

    def whole(self, body: bytes) -> bytes:
        """Return a request's body with all that came before in its `input`. Raise ReplicaError
        404."""
        if b"previous_response_id" not in body:
            return body
        try:
            name = msgspec.json.decode(body, type=_Names).previous_response_id
        except msgspec.DecodeError:
            return body  # decoding it will report the error
        if name is None:
            return body
        before, _ = self._found(name)
        given = json.loads(body)
        del given["previous_response_id"]
        given["input"] = [*before, *_items(given.get("input"))]
        return json.dumps(given).encode()

    def answer(self, name: str) -> bytes:
        """Return the whole response of this name. Raise ReplicaError 404."""
        return self._found(name)[1]

    def keep(self, name: str, body: bytes, text: str, answer: bytes) -> None:
        """Keep a response under this name: the whole body it answers, its text, and the answer."""
        if not self._on:
            return
        given = json.loads(body)
        if given.get("store") is False:
            return
        items = [*_items(given["input"]), {"role": "assistant", "content": text}]
        self._kept[name] = items, answer

    def _found(self, name: str) -> tuple[list[Item], bytes]:
        found = self._kept.get(name)
        if found is None:
            raise vllm_errors.unknown_response(name)
        return found


def _items(given: Any) -> list[Item]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())

"""What versions of vLLM before the pinned one do otherwise, so that the suite fails there for what
is wrong and not for what is known ([vllm.md](../../docs/vllm.md) has the list)."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.vllm.processes import vllm_python

PINNED = (0, 32)
# Real templates that get messages as text, and later as parts.
READ_OTHERWISE = frozenset({"Kimi-K3"})
_BILLING = "x-anthropic-billing-header"


def _version() -> tuple[int, ...]:
    """Of the vLLM that is asked; the pinned one where there is none."""
    for found in vllm_python().parent.parent.glob("lib/python*/site-packages/vllm*.dist-info"):
        if told := re.search(r"-(\d+)\.(\d+)", found.name):
            return tuple(map(int, told.groups()))
    return PINNED


EARLIER = _version() < PINNED
not_earlier = pytest.mark.skipif(EARLIER, reason="the gateway does as vLLM 0.32 does")


def read_alike(bodies: Iterable[Any]) -> Iterator[Any]:
    """The chats that the server's vLLM reads as the pinned one does."""
    return (body for body in bodies if not EARLIER or _is_read_alike(body))


def of_these(count: int) -> int:
    """Return how many chats are at least read alike, where the pinned vLLM reads so many."""
    return count * 2 // 3 if EARLIER else count


def _is_read_alike(body: Any) -> bool:
    # Later versions take this line out of system prompts.
    if _BILLING in json.dumps(body):
        return False
    messages = body.get("messages")
    return not isinstance(messages, list) or all(map(_has_objects, messages))


def _has_objects(message: Any) -> bool:
    """Whether the arguments of all its calls are JSON objects. Later versions read others as
    an empty one; earlier ones refuse them, or put them into the prompt."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return not isinstance(calls, list) or all(map(_is_object, calls))


def _is_object(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return False
    return isinstance(read, dict)

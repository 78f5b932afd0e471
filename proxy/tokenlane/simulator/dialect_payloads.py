"""The JSON of vLLM 0.32's answers in Anthropic's dialect and in that of OpenAI's responses.

Invariants:
- As `tokenlane.simulator.payloads`: fields stand in vLLM's order.
- Both have one choice; events are numbered where the dialect numbers them.
"""

from typing import Any

import msgspec

from tokenlane.simulator.payloads import ChoicePayload, Ids, Shapes, Usage
from tokenlane.simulator.request_bodies import Body

_encode = msgspec.json.encode
_STOPS = {"length": "max_tokens", "stop": "end_turn"}


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


class MessageShapes(Shapes):
    """Anthropic's. prompt_tokens: of the request, told with the first token."""

    def __init__(self, name: str, model: str, prompt_tokens: int) -> None:
        super().__init__(chat=True, id=name, created=0, model=model)
        self._head = {"id": name, "type": "message", "role": "assistant"}
        self._prompt_tokens = prompt_tokens

    def whole(self, choices: list[ChoicePayload], usage: Usage, prompt_ids: Ids) -> bytes:
        """Return the answer to a request that does not stream."""
        only = choices[0]
        message = {**self._head, "content": [{"type": "text", "text": only.text}]}
        message["model"] = self.model
        if only.finish in _STOPS:
            message["stop_reason"] = _STOPS[only.finish]
        return _encode({**message, "usage": _message_usage(usage)})

    def role(self, index: int, prompt_ids: Ids, usage: Usage | None) -> list[bytes]:
        """Return what comes with the first token."""
        told = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._head, "content": [], "model": self.model, "stop_reason": None,
            "stop_sequence": None, "usage": told,
        }  # fmt: skip
        block = {"type": "text", "text": ""}
        start = {"type": "content_block_start", "content_block": block, "index": 0}
        return [
            _event("message_start", {"type": "message_start", "message": message}),
            _event("content_block_start", start),
        ]

    def piece(self, index: int, text: str, **_: Any) -> bytes:
        """Return a token's event."""
        delta = {"type": "text_delta", "text": text}
        event = {"type": "content_block_delta", "delta": delta, "index": 0}
        return _event("content_block_delta", event)

    def closing(self, choices: list[ChoicePayload], usage: Usage | None) -> list[bytes]:
        """Return what comes after the last token."""
        assert usage is not None
        delta = {"stop_reason": _STOPS.get(choices[0].finish), "stop_sequence": None}
        told = {"type": "message_delta", "delta": delta, "usage": _message_usage(usage)}
        return [
            _event("content_block_stop", {"type": "content_block_stop", "index": 0}),
            _event("message_delta", told),
            _event("message_stop", {"type": "message_stop"}),
        ]

    def failure(self, message: str) -> list[bytes]:
        """Return the event of a dead engine."""
        error = {"type": "internal_error", "message": message}
        return [_event("error", {"type": "error", "error": error})]


def counted(tokens: int) -> bytes:
    """Return the answer of /v1/messages/count_tokens."""
    return _encode(
        {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    )


def _message_usage(usage: Usage) -> dict[str, int]:
    """Return the usage: vLLM counts the prompt in three parts where it reports its cache."""
    told = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    details = usage.get("prompt_tokens_details")
    if details:
        created = details.get("created_cache_tokens") or 0
        told["input_tokens"] -= details["cached_tokens"] + created
        told["cache_creation_input_tokens"] = created
        told["cache_read_input_tokens"] = details["cached_tokens"]
    return told


class ResponseShapes(Shapes):
    """The shapes of OpenAI's responses. body: the request, of which much is repeated.
    output_tokens: the most there will be."""

    framed = False

    def __init__(self, name: str, created: int, model: str, body: Body, output_tokens: int) -> None:
        super().__init__(chat=True, id=name, created=created, model=model)
        self._body = body
        self._output_tokens = output_tokens
        self._item = "msg" + name.removeprefix("resp")
        self._number = 0

    def whole(self, choices: list[ChoicePayload], usage: Usage, prompt_ids: Ids) -> bytes:
        """Return the answer to a request that does not stream."""
        return _encode(self._response(choices[0], usage))

    def head(self) -> list[bytes]:
        """Return what comes before the first token."""
        response = self._response(None, None)
        return [
            self._numbered(f"response.{word}", {"response": response})
            for word in ("created", "in_progress")
        ]

    def role(self, index: int, prompt_ids: Ids, usage: Usage | None) -> list[bytes]:
        """Return what comes with the first token."""
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        place = {"content_index": 0, "item_id": self._item, "output_index": 0}
        return [
            self._numbered(
                "response.output_item.added", {"item": self._output(None), "output_index": 0}
            ),
            self._numbered("response.content_part.added", {**place, "part": part}),
        ]

    def piece(self, index: int, text: str, **_: Any) -> bytes:
        """Return a token's event; each has a number of its own."""
        event = {"content_index": 0, "delta": text, "item_id": self._item, "logprobs": []}
        return self._numbered("response.output_text.delta", {**event, "output_index": 0})

    def closing(self, choices: list[ChoicePayload], usage: Usage | None) -> list[bytes]:
        """Return what comes after the last token."""
        choice = choices[0]
        place: dict[str, Any] = {"content_index": 0, "item_id": self._item}
        item = self._output(choice)
        (part,) = item["content"]
        done = {**place, "logprobs": [], "output_index": 0}
        return [
            self._numbered("response.output_text.done", done, {"text": choice.text}),
            self._numbered(
                "response.content_part.done", {**place, "output_index": 0, "part": part}
            ),
            self._numbered("response.output_item.done", {"item": item, "output_index": 0}),
            self._numbered("response.completed", {"response": self._response(choice, usage)}),
        ]

    def failure(self, message: str) -> list[bytes]:
        """Return nothing: vLLM breaks the connection off when its engine has died."""
        return []

    def _numbered(
        self, name: str, data: dict[str, Any], more: dict[str, Any] | None = None
    ) -> bytes:
        event = {**data, "sequence_number": self._number, **(more or {}), "type": name}
        self._number += 1
        return _event(name, event)

    def _output(self, choice: ChoicePayload | None) -> dict[str, Any]:
        content: list[dict[str, Any]] = [] if choice is None else [
            {"annotations": [], "text": choice.text, "type": "output_text", "logprobs": None}
        ]  # fmt: skip
        return {
            "id": self._item, "content": content, "role": "assistant",
            "status": "in_progress" if choice is None else "completed", "type": "message",
            "phase": None,
        }  # fmt: skip

    def _response(self, choice: ChoicePayload | None, usage: Usage | None) -> dict[str, Any]:
        body = self._body
        cut = choice is not None and choice.finish == "length"
        status = "in_progress" if choice is None else "incomplete" if cut else "completed"
        return {
            "id": self.id, "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions, "metadata": None, "model": self.model,
            "object": "response", "output": [] if choice is None else [self._output(choice)],
            "parallel_tool_calls": True,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": "auto" if body.tools else "none", "tools": body.tools or [],
            "top_p": 1.0, "background": False,
            "max_output_tokens": self._output_tokens, "max_tool_calls": None,
            "previous_response_id": body.previous_response_id, "prompt": None, "reasoning": None,
            "service_tier": "auto", "status": status, "text": None, "top_logprobs": None,
            "truncation": "disabled", "usage": None if usage is None else _response_usage(usage),
            "user": None, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "kv_transfer_params": None, "ec_transfer_params": None, "input_messages": None,
            "output_messages": None,
        }  # fmt: skip


def _response_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage: this dialect always reports cached tokens."""
    details = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": details.get("cached_tokens", 0),
            "cache_write_tokens": details.get("created_cache_tokens") or 0,
            "input_tokens_per_turn": [], "cached_tokens_per_turn": [],
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": 0, "tool_output_tokens": 0,
            "output_tokens_per_turn": [], "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage["total_tokens"],
    }  # fmt: skip

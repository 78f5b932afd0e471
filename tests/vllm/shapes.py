"""Chat requests of every shape a client might send, sane or not, from a seeded generator.

Unlike `prompts`, most of these are wrong somewhere: vLLM refuses many of them, and the question
is whether we ever claim to know ids that vLLM would not have used.
"""

import random
from typing import Any

WORDS = (
    "hi", "", "  a b ", "<|im_start|>", "e\u0301", "日本\n", "x-anthropic-billing-header: 1\nmore",
    "x-anthropic-billing-header: 1", "{{ 1 }}", "<think>\nx\n</think>\ny", "\u00a0", "auto",
    "CONTINUE_FINAL_MESSAGE_TAG ",
)  # fmt: skip
ODD: tuple[Any, ...] = (None, 5, 1.5, True, [], {}, "s", ["a"], {"a": 1})
ARGUMENTS = (
    '{"a": 1, "b": [1.0, null]}', "", "bad", "[1]", "null", '{"z": "é", "a": 1e400}', '{"a": NaN}',
    "{}", '"x"', '{"a": 12345678901234567890123}', {"a": 1}, None, 5,
)  # fmt: skip
PART_KEYS = (
    "cache_control name foo uuid image_url closed data prompt_cache_breakpoint annotations detail"
).split()
MESSAGE_KEYS = (
    "tool_calls tool_call_id task reasoning foo tools id audio recipient channel author "
    "content_type type refusal name"
).split()
KWARGS = (
    "enable_thinking custom documents reasoning_effort add_generation_prompt eos_token bos_token "
    "continue_final_message unknown tools tokenize padding messages raise_exception pad_token"
).split()
ROLES = "user user assistant assistant assistant system developer tool wizard function".split()


class Shapes:
    """Bodies from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def _maybe(self, share: float) -> bool:
        return self._rng.random() < share

    def _odd(self) -> Any:
        return self._rng.choice(ODD)

    def _text(self) -> str:
        return "".join(self._rng.choice(WORDS) for _ in range(self._rng.randint(0, 3)))

    def _shuffled(self, value: dict[str, Any], share: float) -> dict[str, Any]:
        return dict(reversed(list(value.items()))) if self._maybe(share) else value

    def _part(self) -> Any:
        kind = self._rng.choice(
            ["text"] * 6 + ["refusal", "thinking", "bare", "none", "odd", "input_text", "image_url"]
        )
        part: dict[str, Any] = {"type": kind, "text": self._text()}
        if kind in ("refusal", "thinking"):
            part = {"type": kind, kind: self._text()}
        elif kind == "bare":
            return self._text()
        elif kind == "none":
            del part["type"]
        elif kind == "odd":
            part["text"] = self._odd()
        if self._maybe(0.3):
            key = self._rng.choice(PART_KEYS)
            part[key] = self._rng.choice((self._odd(), self._text(), {"type": "ephemeral"}))
        return self._shuffled(part, 0.1)

    def _content(self) -> Any:
        if self._maybe(0.55):
            return self._text()
        if self._maybe(0.75):
            return [self._part() for _ in range(self._rng.randint(0, 3))]
        return self._odd()

    def _call(self) -> dict[str, Any]:
        function: dict[str, Any] = {
            "name": self._rng.choice("fg"),
            "arguments": self._rng.choice(ARGUMENTS),
        }
        if self._maybe(0.2):
            function["extra"] = self._odd()
        call: dict[str, Any] = {
            "id": "1",
            "type": "function",
            "function": self._shuffled(function, 0.3),
        }
        if self._maybe(0.1):
            call.pop(self._rng.choice(list(call)))
        if self._maybe(0.1):
            call["type"] = self._rng.choice(("custom", None))
        if self._maybe(0.3):
            call["index"] = self._odd()
        return self._shuffled(call, 0.3)

    def _message(self) -> dict[str, Any]:
        role = self._rng.choice(ROLES)
        message: dict[str, Any] = {"role": role}
        if self._maybe(0.9):
            message["content"] = self._content()
        if self._maybe(0.15):
            message["name"] = self._rng.choice(("bob", self._odd()))
        if role == "tool" and self._maybe(0.8):
            message["tool_call_id"] = "c1" if self._maybe(0.9) else self._odd()
        if role == "assistant":
            if self._maybe(0.4):
                message["tool_calls"] = [self._call() for _ in range(self._rng.randint(0, 2))]
            if self._maybe(0.3):
                key = self._rng.choice(("reasoning", "reasoning_content"))
                message[key] = self._text() if self._maybe(0.9) else self._odd()
            if self._maybe(0.2):
                key = self._rng.choice(("refusal", "audio", "function_call", "annotations"))
                message[key] = self._rng.choice((None, self._odd()))
        if self._maybe(0.1):
            message[self._rng.choice(MESSAGE_KEYS)] = self._rng.choice((self._odd(), self._text()))
        if self._maybe(0.02):
            del message["role"]
        return self._shuffled(message, 0.1)

    def _tool(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": "f"}
        if self._maybe(0.6):
            function["description"] = self._rng.choice((self._text(), None))
        if self._maybe(0.7):
            function["parameters"] = self._rng.choice(({"z": 1.0, "a": {"b": []}}, None, {}))
        for key in ("strict", "defer_loading"):
            if self._maybe(0.2):
                function[key] = self._rng.choice((True, None, False))
        if self._maybe(0.1):
            key = self._rng.choice(("description", "parameters", "strict", "name", "extra"))
            function[key] = self._odd()
        tool: dict[str, Any] = {"type": "function", "function": function}
        if self._maybe(0.1):
            del tool["type"]
        if self._maybe(0.1):
            tool["defer_loading"] = self._rng.choice((True, None, False))
        return self._shuffled(tool, 0.2)

    def body(self) -> dict[str, Any]:
        """The next request."""
        count = self._rng.choice((1, 1, 1, 2, 3, 4))
        body: dict[str, Any] = {"messages": [self._message() for _ in range(count)]}
        if self._maybe(0.02):
            body["messages"] = self._odd()
        if self._maybe(0.3):
            tools = [self._tool() for _ in range(self._rng.randint(0, 2))]
            body |= {"tools": self._rng.choice((tools, None)), "tool_choice": "none"}
        if self._maybe(0.3):
            given = self._rng.choice((True, False, None, "auto", "x", self._odd()))
            body["chat_template_kwargs"] = {self._rng.choice(KWARGS): given}
        if self._maybe(0.05):
            body["chat_template_kwargs"] = self._odd()
        if self._maybe(0.2):
            body["reasoning_effort"] = self._rng.choice(("low", "none", "max", None, "bad", 5))
        if self._maybe(0.2):
            documents = [{"title": "a", "text": self._text()}]
            body["documents"] = self._rng.choice((documents, [], None, self._odd()))
        if self._maybe(0.3):
            body["add_generation_prompt"] = False if self._maybe(0.8) else self._odd()
        if self._maybe(0.3):
            body["continue_final_message"] = True if self._maybe(0.8) else self._odd()
            if self._maybe(0.8):
                body["add_generation_prompt"] = False
        return body

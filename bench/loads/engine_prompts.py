"""Chats for a real engine: so many tokens, so much of them known to its cache, as text or as ids.

Invariants:
- The same prompt goes as text and as ids; beside the ids the messages stay in the body, as the
  gateway leaves them.
- A prompt is either known (one of a few, sent before) or new: no two calls give the same.
"""

import json
from array import array
from typing import Any

from bench.loads import workload
from bench.loads.prompts import chars_for
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.tokenizer import Tokenizer

KNOWN = 8


def with_ids(body: bytes, ids: list[int]) -> bytes:
    """Return a chat's body with the ids of its prompt beside its messages."""
    packed = json.dumps({"prompt_token_ids": ids}, separators=(",", ":"))
    return b'%b,"kv_transfer_params":%b}' % (body[:-1], packed.encode())


class EnginePrompts:
    """Prompts of one tokenizer. out: tokens to generate, exactly; stream: as events."""

    def __init__(self, out: int = 1, *, stream: bool = False) -> None:
        self._tokenizer = Tokenizer.load(MODEL, MODEL_FOLDER)
        self._new = 0
        self._asked: dict[str, Any] = {
            "model": MODEL, "max_tokens": out, "ignore_eos": True, "temperature": 0,
            "stream": stream,
        }  # fmt: skip
        if stream:
            self._asked["stream_options"] = {"include_usage": True}

    def _body(self, messages: list[tuple[str, str]]) -> bytes:
        said = [{"role": role, "content": content} for role, content in messages]
        return json.dumps({**self._asked, "messages": said}).encode()

    def known(self, tokens: int) -> list[bytes]:
        """Return KNOWN chats of about so many tokens, always the same."""
        size = chars_for(tokens)
        return [
            self._body([("user", f"{seed:04d} {workload.text(size, seed)}")])
            for seed in range(KNOWN)
        ]

    def new(self, count: int, tokens: int, shared: float = 0.0) -> list[bytes]:
        """Return so many chats that were never given before. shared: the part of each, from its
        beginning, that is the same in all of one length."""
        size = chars_for(tokens)
        first = workload.text(int(size * shared), 90_000)
        text = workload.text(size - len(first) + 10_000, 91_000)
        made = []
        for _ in range(count):
            self._new += 1
            at = self._new % 10_000
            own = f"{self._new:08d} {text[at : at + size - len(first)]}"
            made.append(self._body([*([("system", first)] if first else []), ("user", own)]))
        return made

    def ids(self, body: bytes) -> list[int]:
        """Return the ids of a chat, as vLLM makes them."""
        asked = inspect(Kind.CHAT, body)
        assert isinstance(asked, ChatBody)
        return array("I", self._tokenizer.chat_ids(asked)).tolist()

    def as_ids(self, bodies: list[bytes]) -> list[bytes]:
        """Return the same chats with their ids beside the text."""
        return [with_ids(body, self.ids(body)) for body in bodies]

"""Parity: does a replica count tokens as we do? Asked when it appears, and seen in its answers.

Invariants:
- A replica that appears (or restarts) is asked once to tokenize a few hard prompts, beside the
  requests and never in their way. One that cannot say is not judged.
- A model that one replica counts otherwise is not trusted any more: its ids still route, but are
  not forwarded. The warning comes once, the metric every time.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from tokenlane.errors import RequestError, UpstreamError
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.gateway.fleet import Fleet, Replica
from tokenlane.http.fetch import fetch
from tokenlane.protocols.prompt_fields import ChatFields, CompletionFields, Unrenderable
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_DEADLINE_S = 10.0
_TEXTS = (
    "",
    "Hello, world!",
    "  two  spaces \n\n\ttabs\r\n",
    "def f(x: int) -> int:\n    return x ** 2  # 3.14\n",
    "naïve café, 東京で会う, Привет, שלום, 🇩🇪👩‍👩‍👧",
    "don't I'LL 1234567890 a" + "b" * 40,
    "<|im_start|>user\n<|im_end|><s></s><|endoftext|>",
)
_CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": " Why? \n"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "é <|im_end|> ok"},
    ],
)


class _Tokens(msgspec.Struct):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Tokens).decode


def _expected(tokenizer: Tokenizer) -> list[tuple[bytes, bytes]]:
    """Bodies for /tokenize without their model, and the packed ids we make of each."""
    found = []
    for text in _TEXTS:
        asked = {"prompt": text}
        request = msgspec.json.decode(msgspec.json.encode(asked), type=CompletionFields)
        found.append((msgspec.json.encode(asked), b"".join(tokenizer.completion_ids(request))))
    for messages in _CHATS:
        chat = {"messages": messages}
        fields = msgspec.json.decode(msgspec.json.encode(chat), type=ChatFields)
        try:
            found.append((msgspec.json.encode(chat), tokenizer.chat_ids(fields)))
        except (Unrenderable, RequestError):
            continue  # no template, or one that refuses this conversation
    return found


class Parity:
    """Which models are trusted. on_mismatch: told (model, replica id) of each difference."""

    def __init__(
        self,
        tokenizer: Callable[[str], Tokenizer | None],
        on_mismatch: Callable[[str, str], object],
    ) -> None:
        self._tokenizer = tokenizer
        self._on_mismatch = on_mismatch
        self._asked: dict[int, tuple[str, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._distrusted: set[str] = set()

    def trusts(self, model: str) -> bool:
        """Whether no replica was ever seen to count this model's tokens otherwise."""
        if not self._distrusted:
            return True
        tokenizer = self._tokenizer(model)  # an adapter's is that of its model
        names = {model} if tokenizer is None else {model, tokenizer.model}
        return self._distrusted.isdisjoint(names)

    def differs(self, model: str, replica: str) -> None:
        """A replica counted otherwise."""
        self._on_mismatch(model, replica)
        if model not in self._distrusted:
            self._distrusted.add(model)
            log.warning("%s counts other prompt tokens for %s than we do", replica, model)

    def update(self, state: FleetState, fleet: Fleet) -> None:
        """A new snapshot, known to `fleet` already: asks the replicas that are new in it."""
        for now in state.replicas:
            seen = now.id, now.started_s
            if not now.up or not now.models or self._asked.get(now.slot) == seen:
                continue
            self._asked[now.slot] = seen
            task = asyncio.get_running_loop().create_task(self._ask(now, fleet[now.slot]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Asks no further."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self, state: ReplicaState, replica: Replica) -> None:
        for model in state.models:
            if model in state.adapters:
                continue
            tokenizer = self._tokenizer(model)
            if tokenizer is None:
                continue
            try:
                for body, ids in await asyncio.to_thread(_expected, tokenizer):
                    if not await _agrees(replica, model, body, ids):
                        self.differs(model, state.id)
                        break
            except (UpstreamError, TimeoutError, Unrenderable, RequestError, ValueError):
                continue  # it cannot say, or nothing that can be compared


async def _agrees(replica: Replica, model: str, body: bytes, ids: bytes) -> bool:
    named = msgspec.json.encode({"model": model, **msgspec.json.decode(body)})
    status, answer = await fetch(replica.pool, "/tokenize", named, _DEADLINE_S)
    if status != 200:
        raise ValueError("no answer to compare")
    return pack(_decode(answer).tokens) == ids

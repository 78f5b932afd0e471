"""The JSON of vLLM 0.32's answers.

Invariants:
- Fields stand in vLLM's order. A field vLLM always writes has a default here; one it leaves out
  where it was not set is UNSET.
- Chunks of a stream differ only in their text, so each stream makes its frame once.
"""

import json
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-51b0a7e0"
DONE = b"data: [DONE]\n\n"
_MARK = "\u241f"
_QUOTED_MARK = msgspec.json.encode(_MARK)

Ids = list[int] | None


class PromptDetails(msgspec.Struct):
    """usage.prompt_tokens_details."""

    cached_tokens: int
    created_cache_tokens: int | None | UnsetType = None
    multimodal_tokens: None | UnsetType = None


class UsagePayload(msgspec.Struct):
    """usage."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None | UnsetType = UNSET
    completion_tokens_details: None | UnsetType = UNSET


class _Message(msgspec.Struct):
    role: str
    content: str
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: None = None


class _ChatChoice(msgspec.Struct):
    index: int
    message: _Message
    logprobs: None
    finish_reason: str
    stop_reason: None
    token_ids: Ids
    routed_experts: None = None


class _Chat(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[_ChatChoice]
    service_tier: None
    system_fingerprint: str
    usage: UsagePayload
    prompt_logprobs: None
    prompt_token_ids: Ids
    prompt_text: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class _TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: None
    finish_reason: str
    stop_reason: None
    token_ids: Ids
    prompt_logprobs: None
    prompt_token_ids: Ids
    routed_experts: None = None


class _Text(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[_TextChoice]
    service_tier: None
    system_fingerprint: str
    usage: UsagePayload
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class _Delta(msgspec.Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChatStreamChoice(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: None | UnsetType = UNSET
    token_ids: Ids | UnsetType = UNSET


class _TextStreamChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: None = None
    prompt_token_ids: Ids = None
    token_ids: Ids = None


class _Chunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChatStreamChoice | _TextStreamChoice] | list[None]
    usage: UsagePayload | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET
    prompt_text: None | UnsetType = UNSET


class _Embedding(msgspec.Struct):
    index: int
    object: Literal["embedding"]
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[_Embedding]
    usage: UsagePayload


class ChoicePayload(msgspec.Struct):
    """One finished answer. prompt_ids, ids: only where the request asked for ids."""

    index: int
    text: str
    finish: str
    ids: Ids = None
    prompt_ids: Ids = None


def _event(chunk: _Chunk) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


class Shapes:
    """The answers to one request. chat: else completions. framed: events with a token's text
    differ in nothing but the text."""

    framed = True

    def __init__(self, *, chat: bool, id: str, created: int, model: str) -> None:  # noqa: A002
        self.chat = chat
        self.id = id
        self.created = created
        self.model = model

    def whole(self, choices: list[ChoicePayload], usage: UsagePayload, prompt_ids: Ids) -> bytes:
        """The answer to a request that does not stream."""
        if self.chat:
            chats = [
                _ChatChoice(
                    one.index, _Message("assistant", one.text), None, one.finish, None, one.ids
                )
                for one in choices
            ]
            return msgspec.json.encode(
                _Chat(
                    self.id, "chat.completion", self.created, self.model, chats, None,
                    FINGERPRINT, usage, None, prompt_ids,
                )
            )  # fmt: skip
        texts = [
            _TextChoice(one.index, one.text, None, one.finish, None, one.ids, None, one.prompt_ids)
            for one in choices
        ]
        return msgspec.json.encode(
            _Text(
                self.id, "text_completion", self.created, self.model, texts, None,
                FINGERPRINT, usage,
            )
        )  # fmt: skip

    def role(self, index: int, prompt_ids: Ids, usage: UsagePayload | UnsetType) -> list[bytes]:
        """The first events of each choice of a chat: one."""
        chunk = self._chunk([_ChatStreamChoice(index, _Delta("assistant", ""))], usage)
        chunk.prompt_token_ids = prompt_ids
        chunk.prompt_text = None
        return [_event(chunk)]

    def frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the JSON string of the text in a plain event."""
        before, _, after = self.piece(index, _MARK).partition(_QUOTED_MARK)
        return before, after

    def piece(
        self,
        index: int,
        text: str,
        *,
        finish: str | None = None,
        ids: Ids = None,
        prompt_ids: Ids = None,
        usage: UsagePayload | UnsetType = UNSET,
        fingerprint: bool = False,
    ) -> bytes:
        """An event with text. finish: it is the choice's last."""
        choice: _ChatStreamChoice | _TextStreamChoice
        if self.chat:
            stop = UNSET if finish is None else None
            choice = _ChatStreamChoice(index, _Delta(content=text), None, finish, stop, ids)
        else:
            choice = _TextStreamChoice(index, text, None, finish, None, prompt_ids, ids)
        chunk = self._chunk([choice], usage)
        if fingerprint:
            chunk.system_fingerprint = FINGERPRINT
        return _event(chunk)

    def head(self) -> list[bytes]:
        """The events that come before the first token."""
        return []

    def closing(self, choices: list[ChoicePayload], usage: UsagePayload | None) -> list[bytes]:
        """The events that come after the last token."""
        return [DONE] if usage is None else [self.usage(usage), DONE]

    def failure(self, message: str) -> list[bytes]:
        """The events of a dead engine; none where the connection just ends."""
        info = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return [b"data: %b\n\n" % json.dumps({"error": info}).encode(), DONE]

    def usage(self, usage: UsagePayload) -> bytes:
        """The event after the last choice, where stream_options.include_usage asked for it."""
        chunk = self._chunk([], usage)
        chunk.system_fingerprint = FINGERPRINT
        return _event(chunk)

    def _chunk(
        self, choices: list[_ChatStreamChoice | _TextStreamChoice], usage: UsagePayload | UnsetType
    ) -> _Chunk:
        name = "chat.completion.chunk" if self.chat else "text_completion"
        return _Chunk(self.id, name, self.created, self.model, choices, usage)


def embeddings(
    name: str, created: int, model: str, vectors: list[list[float]], tokens: int
) -> bytes:
    """The answer of /v1/embeddings."""
    rows = [_Embedding(index, "embedding", vector) for index, vector in enumerate(vectors)]
    usage = UsagePayload(tokens, tokens, 0, None, None)
    return msgspec.json.encode(_Embeddings(f"embd-{name}", "list", created, model, rows, usage))


class _Permission(msgspec.Struct):
    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class _Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[_Permission]


class _Models(msgspec.Struct):
    object: Literal["list"]
    data: list[_Model]


def models(
    model: str, root: str, created: int, max_model_tokens: int, adapters: dict[str, str]
) -> bytes:
    """The answer of /v1/models. adapters: by name, where each is from."""
    permission = _Permission(f"modelperm-{created:016x}", "model_permission", created)
    rows = [_Model(model, "model", created, "vllm", root, None, max_model_tokens, [permission])]
    rows += [
        _Model(name, "model", created, "vllm", path, model, None, [permission])
        for name, path in adapters.items()
    ]
    return msgspec.json.encode(_Models("list", rows))


class _Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


def tokens(ids: list[int], max_model_tokens: int, texts: list[str] | None) -> bytes:
    """The answer of /tokenize."""
    return msgspec.json.encode(_Tokens(len(ids), max_model_tokens, ids, texts))

"""The JSON of vLLM 0.32's answers.

Invariants:
- Fields stand in vLLM's order. What vLLM leaves out where it was not set is left out, too.
- Chunks of a stream differ only in their text, so each stream makes its frame once.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-51b0a7e0"
DONE = b"data: [DONE]\n\n"
_MARK = "\u241f"
_QUOTED_MARK = msgspec.json.encode(_MARK)
# The last fields of vLLM's whole answers, and those of a message besides its text: all null.
_NEVER_SET = ("kv_transfer_params", "ec_transfer_params", "metrics")
_UNSAID = ("refusal", "annotations", "audio", "function_call", "reasoning")

Ids = list[int] | None
Usage = dict[str, Any]


def counted(prompt_tokens: int, output_tokens: int, **more: Any) -> Usage:
    """Return a usage."""
    total = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + output_tokens}
    return {**total, "completion_tokens": output_tokens, **more}


class ChoicePayload(msgspec.Struct):
    """One finished answer. prompt_ids, ids: only where the request asked for ids."""

    index: int
    text: str
    finish: str
    ids: Ids = None
    prompt_ids: Ids = None


@dataclass
class Shapes:
    """The answers to one request. chat: else completions. says_usage: else it is null. framed:
    events with a token's text differ in nothing but the text."""

    framed: ClassVar[bool] = True
    chat: bool
    id: str
    created: int
    model: str
    says_usage: bool = True

    def whole(self, choices: list[ChoicePayload], usage: Usage, prompt_ids: Ids) -> bytes:
        """Return the answer to a request that does not stream."""
        head = {"id": self.id, "object": "text_completion", "created": self.created}
        rest: dict[str, Any] = {
            "model": self.model, "choices": [self._choice(one) for one in choices],
            "service_tier": None, "system_fingerprint": FINGERPRINT,
            "usage": usage if self.says_usage else None,
        }  # fmt: skip
        if self.chat:
            head["object"] = "chat.completion"
            rest |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        return msgspec.json.encode({**head, **rest, **dict.fromkeys(_NEVER_SET)})

    def _choice(self, one: ChoicePayload) -> dict[str, Any]:
        ending = {
            "logprobs": None, "finish_reason": one.finish, "stop_reason": None,
            "token_ids": one.ids,
        }  # fmt: skip
        if self.chat:
            message = {"role": "assistant", "content": one.text, **dict.fromkeys(_UNSAID)}
            return {"index": one.index, "message": message, **ending, "routed_experts": None}
        return {
            "index": one.index, "text": one.text, **ending, "prompt_logprobs": None,
            "prompt_token_ids": one.prompt_ids, "routed_experts": None,
        }  # fmt: skip

    def role(self, index: int, prompt_ids: Ids, usage: Usage | None) -> list[bytes]:
        """Return the first events of each choice of a chat: one."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [self._event([choice], usage, prompt_token_ids=prompt_ids, prompt_text=None)]

    def frame(self, index: int) -> tuple[bytes, bytes]:
        """Return what stands before and after the JSON string of the text in a plain event."""
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
        usage: Usage | None = None,
        fingerprint: bool = False,
    ) -> bytes:
        """Return an event with text. finish: it is the choice's last."""
        ending: dict[str, Any] = {"logprobs": None, "finish_reason": finish}
        if self.chat:
            choice = {"index": index, "delta": {"content": text}, **ending}
            if finish is not None:
                choice["stop_reason"] = None
        else:
            choice = {"index": index, "text": text, **ending, "stop_reason": None}
            choice["prompt_token_ids"] = prompt_ids
        choice["token_ids"] = ids
        more = {"system_fingerprint": FINGERPRINT} if fingerprint else {}
        return self._event([choice], usage, **more)

    def head(self) -> list[bytes]:
        """Return the events that come before the first token."""
        return []

    def closing(self, choices: list[ChoicePayload], usage: Usage | None) -> list[bytes]:
        """Return the events that come after the last token."""
        if usage is None or not self.says_usage:
            return [DONE]
        # Where stream_options.include_usage asked for it.
        return [self._event([], usage, system_fingerprint=FINGERPRINT), DONE]

    def failure(self, message: str) -> list[bytes]:
        """Return the events of a dead engine; none where the connection just ends."""
        info = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return [b"data: %b\n\n" % json.dumps({"error": info}).encode(), DONE]

    def _event(self, choices: list[dict[str, Any]], usage: Usage | None, **more: Any) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.id, "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": self.created, "model": self.model, "choices": choices,
        }  # fmt: skip
        if self.says_usage and usage is not None:
            chunk["usage"] = usage
        return b"data: %b\n\n" % msgspec.json.encode({**chunk, **more})


def embeddings(
    name: str, created: int, model: str, vectors: list[list[float]], tokens: int
) -> bytes:
    """Return the answer of /v1/embeddings."""
    rows = [
        {"index": index, "object": "embedding", "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    usage = counted(tokens, 0, prompt_tokens_details=None, completion_tokens_details=None)
    head = {"id": f"embd-{name}", "object": "list", "created": created, "model": model}
    return msgspec.json.encode({**head, "data": rows, "usage": usage})


def models(
    model: str, root: str, created: int, max_model_tokens: int | None, adapters: dict[str, str]
) -> bytes:
    """Return the answer of /v1/models. adapters: by name, where each is from."""
    permission = {
        "id": f"modelperm-{created:016x}", "object": "model_permission", "created": created,
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
        "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False,
        "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip

    def row(name: str, root: str, parent: str | None, limit: int | None) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": root,
            "parent": parent, "max_model_len": limit, "permission": [permission],
        }  # fmt: skip

    rows = [row(model, root, None, max_model_tokens)]
    rows += [row(name, path, model, None) for name, path in adapters.items()]
    return msgspec.json.encode({"object": "list", "data": rows})


def tokens(ids: list[int], max_model_tokens: int, texts: list[str] | None) -> bytes:
    """Return the answer of /tokenize."""
    told = {"count": len(ids), "max_model_len": max_model_tokens}
    return msgspec.json.encode({**told, "tokens": ids, "token_strs": texts})

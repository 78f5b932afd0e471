"""Bodies of the answers that the gateway makes itself: model list, tokenize, detokenize, token
counts. Pure: values to JSON bytes.

Invariants:
- Shapes are vLLM's, so a client cannot tell who answered.
- Long lists of ids are made here, on the calling thread, never on the loop. They take their ids and
  their JSON.
- Work that would hold the GIL for long is left to a replica (Unrenderable).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tokenlane.errors import UNREADABLE, RequestError, Unrenderable
from tokenlane.fleet_state import FleetState, adapter_bases
from tokenlane.gateway.refusals import unknown_model
from tokenlane.protocols import context_window, prompt_fields
from tokenlane.protocols.bodies import ABSENT, ChatBody, CompletionBody, Kind, MessagesBody
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.ids import from_json, json_items, unpack
from tokenlane.tokens.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode
# Decoding holds the GIL: 20 ms for so many ids.
_DECODED_IDS = 32 * 1024


class _Probe(msgspec.Struct):
    messages: msgspec.Raw = ABSENT
    return_token_strs: bool | None = None


class Tokenize(NamedTuple):
    """`POST /tokenize`, read. with_texts: each id's text is asked for, too."""

    asked: ChatBody | CompletionBody
    with_texts: bool | None

    @property
    def model(self) -> str | None:
        """The model that is named."""
        return self.asked.model


class DetokenizeBody(msgspec.Struct):
    """`POST /detokenize`. tokens: a list of ids."""

    tokens: msgspec.Raw
    model: str | None = None


class Detokenize(NamedTuple):
    """The same, read. ids: packed."""

    ids: bytes
    model: str | None


_decode_chat = msgspec.json.Decoder(ChatBody, strict=False).decode
_decode_text = msgspec.json.Decoder(CompletionBody, strict=False).decode
_decode_probe = msgspec.json.Decoder(_Probe, strict=False).decode
_decode_detokenize = msgspec.json.Decoder(DetokenizeBody).decode


def models(
    fleet: FleetState,
    created_s: int,
    names: Mapping[str, Sequence[str]] | None = None,
    only: str = "",
) -> bytes:
    """Return `GET /v1/models`, merged over the replicas: each name once, the smallest context wins.
    names: of the settings, each with the models that it may mean; listed if one is served, and
    `root` says which. only: of this model, as `GET /v1/models/{id}`; RequestError 404 for none."""
    contexts: dict[str, int | None] = {}
    for replica in fleet.replicas:
        for name in replica.models:
            known = [
                tokens
                for tokens in (contexts.get(name), replica.max_model_tokens)
                if tokens is not None
            ]
            contexts[name] = min(known, default=None)
    roots = {name: name for name in contexts}
    for name, behind in (names or {}).items():
        served = [model for model in behind if model in roots]
        if served:
            limits = [limit for model in served if (limit := contexts[model]) is not None]
            contexts[name], roots[name] = min(limits, default=None), served[0]
    parents = adapter_bases(fleet.replicas)
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": "vllm",
            "root": roots[name],
            "parent": parents.get(name),
            "max_model_len": limit_tokens,
        }
        for name, limit_tokens in contexts.items()
    ]
    if not only:
        return _encode({"object": "list", "data": cards})
    if only not in contexts:
        raise unknown_model(only, contexts)
    return _encode(next(card for card in cards if card["id"] == only))


def tokenize_request(body: bytes) -> Tokenize:
    """Return the body of `POST /tokenize`. Raise RequestError 400."""
    try:
        probe = _decode_probe(body)
        is_chat = bytes(probe.messages) not in (b"", b"null")
        asked = _decode_chat(body) if is_chat else _decode_text(body)
    except UNREADABLE:
        raise _malformed() from None
    return Tokenize(asked, probe.return_token_strs)


def tokenize(tokenizer: Tokenizer, request: Tokenize, max_model_tokens: int | None) -> bytes:
    """Return the answer. Raise RequestError as vLLM would, Unrenderable where ids are not known."""
    asked = request.asked
    _only_known_there(asked)
    if type(asked) is ChatBody:
        ids = tokenizer.chat_ids(asked)
    else:
        (ids,) = tokenizer.completion_ids(asked)
    limit = _encode(max_model_tokens or tokenizer.max_model_tokens)
    parts = [b'{"count":%d,"max_model_len":%b,"tokens":[' % (len(ids) // 4, limit)]
    parts += json_items(ids, lambda some: unpack(some).tolist())
    if request.with_texts:
        parts.append(b'],"token_strs":[')
        parts += json_items(ids, tokenizer.encoder.token_strings)
        parts.append(b"]}")
    else:
        parts.append(b'],"token_strs":null}')
    return b"".join(parts)


def _only_known_there(request: ChatBody | CompletionBody) -> None:
    """Raise Unrenderable for what counts in a request for an answer, and which `/tokenize` of a
    replica ignores, or refuses."""
    ignored = [request.truncate_prompt_tokens, request.truncation_side]
    if type(request) is ChatBody:
        ignored += request.documents, request.reasoning_effort
        turns = prompt_fields.value(request.messages)
        known = prompt_fields.value(request.tools) != [] and not (
            isinstance(turns, list)
            and any(isinstance(turn, dict) and "reasoning_content" in turn for turn in turns)
        )
    else:
        known = bytes(request.prompt).lstrip()[:1] == b'"'
    if not known or any(one is not ABSENT for one in ignored):
        raise Unrenderable("field-shape")


def count_request(body: bytes) -> MessagesBody:
    """Return the body of `POST /v1/messages/count_tokens`. Raise RequestError 400."""
    request = inspect(Kind.MESSAGES, body)
    assert type(request) is MessagesBody
    return request


def count(tokenizer: Tokenizer, request: MessagesBody, max_model_tokens: int | None) -> bytes:
    """Return the answer. Raise RequestError as vLLM would, Unrenderable where ids are not known."""
    tokens = len(tokenizer.chat_ids(request)) // 4
    limit_tokens = max_model_tokens or tokenizer.max_model_tokens
    if limit_tokens is not None and tokens > limit_tokens:
        raise context_window.too_long(limit_tokens, tokens, cut=True)
    return _encode(
        {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    )


def detokenize_request(body: bytes) -> Detokenize:
    """Return the body of `POST /detokenize`. Raise RequestError 400."""
    try:
        read = _decode_detokenize(body)
        return Detokenize(from_json(bytes(read.tokens)), read.model)
    except UNREADABLE:
        raise _malformed() from None


def detokenize(tokenizer: Tokenizer, request: Detokenize) -> bytes:
    """Return the answer: text, special tokens included. Raise Unrenderable for many ids."""
    if len(request.ids) > 4 * _DECODED_IDS:
        raise Unrenderable("uncut")
    return _encode({"prompt": tokenizer.decode(request.ids)})


def _malformed() -> RequestError:
    return RequestError(400, "The body is not a valid request.", code="invalid_body")

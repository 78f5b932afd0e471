"""What the gateway answers itself: model list, tokenize, detokenize, a count of
tokens. Pure: values to JSON bytes.

Invariants:
- Shapes are vLLM's, so a client cannot tell who answered.
- Long lists of ids are made here, on whatever thread calls; never on the loop.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokenlane.errors import RequestError
from tokenlane.fleet_state import FleetState, adapter_bases
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind, MessagesBody, inspect
from tokenlane.protocols.prompt_fields import ABSENT
from tokenlane.tokens.ids import pack, unpack
from tokenlane.tokens.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


class TokenizeChat(ChatBody):
    """`POST /tokenize` with messages."""

    return_token_strs: bool | None = None


class TokenizeText(CompletionBody):
    """`POST /tokenize` with a prompt."""

    return_token_strs: bool | None = None


class _Probe(msgspec.Struct):
    messages: msgspec.Raw = ABSENT


class DetokenizeBody(msgspec.Struct):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


_decode_chat = msgspec.json.Decoder(TokenizeChat, strict=False).decode
_decode_text = msgspec.json.Decoder(TokenizeText, strict=False).decode
_decode_probe = msgspec.json.Decoder(_Probe).decode
_decode_detokenize = msgspec.json.Decoder(DetokenizeBody).decode


def models(
    fleet: FleetState, created_s: int, names: Mapping[str, Sequence[str]] | None = None
) -> bytes:
    """`GET /v1/models`, merged over the replicas: each name once, the smallest context wins.
    names: of the settings, each with the models that it may mean; listed if one is served, and
    `root` says which."""
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
    return _encode({"object": "list", "data": cards})


def tokenize_request(body: bytes) -> TokenizeChat | TokenizeText:
    """The body of `POST /tokenize`. Raises RequestError 400."""
    try:
        if bytes(_decode_probe(body).messages) not in (b"", b"null"):
            return _decode_chat(body)
        return _decode_text(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _malformed() from None


def tokenize(
    tokenizer: Tokenizer, request: TokenizeChat | TokenizeText, max_model_tokens: int | None
) -> bytes:
    """The answer. Raises RequestError as vLLM would, Unrenderable where ids are not known."""
    if isinstance(request, TokenizeChat):
        ids = tokenizer.chat_ids(request)
    else:
        sequences = tokenizer.completion_ids(request)
        if len(sequences) != 1:
            raise _malformed()
        ids = sequences[0]
    tokens = unpack(ids).tolist()
    strings: list[str] | None = None
    if request.return_token_strs:
        strings = tokenizer.encoder.token_strings(ids)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": max_model_tokens or tokenizer.max_model_tokens,
        "tokens": tokens,
        "token_strs": strings,
    }
    return _encode(answer)


def count_request(body: bytes) -> MessagesBody:
    """The body of `POST /v1/messages/count_tokens`. Raises RequestError 400."""
    request = inspect(Kind.MESSAGES, body)
    assert isinstance(request, MessagesBody)
    return request


def count(tokenizer: Tokenizer, request: MessagesBody, max_model_tokens: int | None) -> bytes:
    """The answer. Raises RequestError as vLLM would, Unrenderable where ids are not known."""
    tokens = len(tokenizer.chat_ids(request)) // 4
    limit_tokens = max_model_tokens or tokenizer.max_model_tokens
    if limit_tokens is not None and tokens > limit_tokens:
        raise context_window.too_long(limit_tokens, tokens, cut=True)
    return _encode(
        {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    )


def detokenize_request(body: bytes) -> DetokenizeBody:
    """The body of `POST /detokenize`. Raises RequestError 400."""
    try:
        return _decode_detokenize(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _malformed() from None


def detokenize(tokenizer: Tokenizer, request: DetokenizeBody) -> bytes:
    """The answer: text, special tokens included."""
    try:
        ids = pack(request.tokens)
    except OverflowError:
        raise _malformed() from None
    return _encode({"prompt": tokenizer.decode(ids)})


def _malformed() -> RequestError:
    return RequestError(400, "The body is not a valid request.", code="invalid_body")

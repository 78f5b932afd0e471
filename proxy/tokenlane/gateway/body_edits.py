"""Bodies made anew: a replica gets the ids that are known here, and does not tokenize again; or
another model's name, or a tenant's salt.

Invariants:
- Ids go only in request shapes whose answers were proven equal on real vLLM (`make test-vllm`):
  anything unusual in a body, and it goes on as it came.
- Every other field stays as the client wrote it, byte for byte.
"""

from collections.abc import Sequence

import msgspec

from tokenlane.errors import RequestError
from tokenlane.protocols import json_values
from tokenlane.protocols.bodies import ChatBody, CompletionBody, is_ids
from tokenlane.tokens.ids import unpack

# Fields that look at the prompt's text, or that make vLLM count or cut tokens of its own.
_UNPROVEN = frozenset(
    "echo suffix prompt_embeds truncate_prompt_tokens truncation_side prompt_logprobs "
    "return_token_ids add_special_tokens".split()
)
_UNPROVEN_CHAT = _UNPROVEN | frozenset(
    "tools tool_choice documents continue_final_message mm_processor_kwargs".split()
)
# Ids are turned into text so many at a time: a list of all of them would hold the GIL.
_BATCH = 2048

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def _fields(raw: bytes) -> dict[str, msgspec.Raw] | None:
    """By their names; None where one is no text, or there are too many."""
    try:
        return json_values.fields(raw) if json_values.are_few(raw) else None
    except ValueError:
        return None


def with_ids(
    raw: bytes, body: ChatBody | CompletionBody, sequences: Sequence[bytes]
) -> bytes | None:
    """The body with packed ids in the place of its text; None where it must go on as it came.

    raw: the whole body as it came; `body` is what was read of it.
    """
    if is_ids(body) or not json_values.are_few(raw):
        return None
    try:
        fields = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(body, ChatBody):
        return _chat_with_ids(fields, sequences[0])
    if not _UNPROVEN.isdisjoint(fields):
        return None
    prompts = [_json_ids(ids) for ids in sequences]
    single = bytes(fields["prompt"]).lstrip()[:1] == b'"'
    fields["prompt"] = msgspec.Raw(prompts[0] if single else b"[" + b",".join(prompts) + b"]")
    return _encode(fields)


def _chat_with_ids(fields: dict[str, msgspec.Raw], ids: bytes) -> bytes | None:
    if not _UNPROVEN_CHAT.isdisjoint(fields) or "kv_transfer_params" in fields:
        return None
    fields["kv_transfer_params"] = msgspec.Raw(b'{"prompt_token_ids":' + _json_ids(ids) + b"}")
    return _encode(fields)


def with_model(raw: bytes, model: str) -> bytes:
    """The body with this model's name, whatever it had. raw: a JSON object."""
    name = _encode(model)
    fields = _fields(raw)
    if fields is None:
        return _with_last(raw, b"model", name)
    fields["model"] = msgspec.Raw(name)
    return _encode(fields)


def with_salt(raw: bytes, salt: str) -> bytes:
    """The body with this cache_salt and no other. raw: a JSON object. Raises RequestError 400.

    A replica that reads the first of repeated keys must not find its client's own.
    """
    fields = _fields(raw)
    if fields is None:
        raise RequestError(
            400, "The body has too many fields, or one with a name that is no text.", code="fields"
        )
    fields["cache_salt"] = msgspec.Raw(_encode(salt))
    return _encode(fields)


def with_first_salt(raw: bytes, salt: str) -> bytes:
    """The same of a body that has none, without reading it. salt: needs no escapes in JSON."""
    return _with_last(raw, b"cache_salt", b'"%b"' % salt.encode("ascii"))


def _with_last(raw: bytes, key: bytes, value: bytes) -> bytes:
    """Of a repeated key the last counts, here and in the replica: the new one stands at the end."""
    rest = raw.rstrip(b" \t\r\n")[:-1]
    comma = b"" if rest.lstrip(b" \t\r\n") == b"{" else b","
    return b'%b%b"%b":%b}' % (rest, comma, key, value)


def _json_ids(ids: bytes) -> bytes:
    """A JSON array of packed ids."""
    step = 4 * _BATCH
    batches = (ids[at : at + step] for at in range(0, len(ids), step))
    return b"[" + b",".join(_encode(unpack(one).tolist())[1:-1] for one in batches) + b"]"

"""A completion's prompts: texts, or ids that the client made."""

from typing import Any

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import CompletionFields
from tokenlane.tokens.ids import pack


def completion_prompts(request: CompletionFields) -> tuple[str | bytes, ...]:
    """Return a completion's prompts: text, or packed ids as the client sent them. Raise
    Unrenderable, RequestError 400."""
    if prompt_fields.value(request.prompt_embeds) is not None:
        raise Unrenderable("multimodal")
    if prompt_fields.value(request.suffix) is not None:
        raise Unrenderable("suffix")
    given = prompt_fields.decoded(request.prompt)
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list) or not given:
        raise Unrenderable("field-shape")
    if isinstance(given[0], int | float):
        return (_given_ids(given),)
    return tuple(one if isinstance(one, str) else _given_ids(one) for one in given)


def _given_ids(ids: Any) -> bytes:
    try:
        return pack(msgspec.convert(ids, list[int], strict=True))
    except (msgspec.ValidationError, OverflowError):
        if isinstance(ids, list) and any(isinstance(one, float | bool) for one in ids):
            raise Unrenderable("field-shape") from None  # vLLM takes 1.0 and true for 1
        raise RequestError(
            400, "`prompt` must be a string, token ids, or a list of either.", param="prompt"
        ) from None

"""The question to a replica's `/tokenize` where a prompt's ids cannot be made here, and its answer.

Invariants:
- Exact or silent, as everywhere: a question is one that vLLM 0.32 renders as it will render the
  request itself. What `/tokenize` has no word for (media, truncation, several prompts) raises
  Unrenderable.
"""

from typing import Any

import msgspec

from tokenlane.errors import UNREADABLE, Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import (
    ABSENT,
    ChatFields,
    CompletionBody,
    MessagesBody,
    Prompted,
    ResponsesBody,
)
from tokenlane.tokens.chat import anthropic_messages, openai_responses
from tokenlane.tokens.completion_prompts import completion_prompts
from tokenlane.tokens.ids import from_json
from tokenlane.tokens.tokenizer import Tokenizer

# Statuses that concern this prompt alone: another one may work.
OF_THE_PROMPT = frozenset((400, 413, 422))
# Types of message parts; all others are media or unknown. Not a set, because a request may send a
# type that cannot be hashed.
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")

_encode = msgspec.json.Encoder().encode


class _Tokens(msgspec.Struct):
    tokens: msgspec.Raw
    count: int


_decode_answer = msgspec.json.Decoder(_Tokens).decode


def question(model: str, request: Prompted, tokenizer: Tokenizer | None) -> bytes:
    """Return the body to send. tokenizer: of the model, where it can at least turn dialects into
    chats. Raise Unrenderable."""
    asked: dict[str, Any] = {"model": model} if model else {}
    if type(request) is CompletionBody:
        asked["prompt"] = _only(request)
        if request.add_special_tokens is not ABSENT:
            asked["add_special_tokens"] = request.add_special_tokens
        return _encode(asked)
    return _encode(asked | _chat(_as_chat(request, tokenizer)))


def given_ids(request: CompletionBody) -> bytes:
    """Return packed ids of a prompt that came as ids. Raise Unrenderable, RequestError 400."""
    prompt = _only(request)
    assert isinstance(prompt, bytes)
    return prompt


def answer(body: bytes) -> bytes:
    """Return packed ids of the answer to a question. Raise Unrenderable where it is none."""
    try:
        told = _decode_answer(body)
        ids = from_json(bytes(told.tokens))
    except UNREADABLE:
        raise Unrenderable("replica-failed") from None
    if len(ids) != 4 * told.count:
        raise Unrenderable("replica-failed")
    return ids


def _only(request: CompletionBody) -> str | bytes:
    """Return the one prompt of a completion: text, or packed ids."""
    _refuse_truncation(request)
    prompts = completion_prompts(request)
    if len(prompts) != 1:
        raise Unrenderable("several-prompts")
    return prompts[0]


def _refuse_truncation(request: ChatFields | CompletionBody) -> None:
    cut = prompt_fields.truncation(request.truncate_prompt_tokens, request.truncation_side)
    if cut is not None:
        raise Unrenderable("truncation")


def _as_chat(request: Prompted, tokenizer: Tokenizer | None) -> ChatFields:
    if type(request) is ResponsesBody:
        messages, _ = openai_responses.messages_of(request)
        fields = openai_responses.fields_of(request)
        # `/tokenize` sorts the keys of calls, and responses do not.
        if any("tool_calls" in turn for turn in messages):
            raise Unrenderable("tool-shape")
        return _whole(fields, messages)
    if type(request) is not MessagesBody:
        assert isinstance(request, ChatFields)
        return request
    if tokenizer is not None:
        fields = tokenizer.fields_of(request)
        return _whole(fields, tokenizer.messages_of(request)[0])
    # Only the template decides these two; where they matter, the ids are not known.
    fields = anthropic_messages.fields_of(request, _unknown)
    one, other = (
        anthropic_messages.messages_of(request, system_first=first)[0] for first in (True, False)
    )
    if one != other:
        raise Unrenderable("no-chat-template")
    return _whole(fields, one)


def _whole(fields: ChatFields, messages: Any) -> ChatFields:
    return msgspec.structs.replace(fields, messages=anthropic_messages.encoded(messages))


def _unknown() -> str:
    raise Unrenderable("no-chat-template")


def _chat(chat: ChatFields) -> dict[str, Any]:
    """Return the fields of `/tokenize`. What a chat gives its template beside the messages goes
    where vLLM puts it too: into the template's variables."""
    prompt_fields.refuse_overrides(chat)
    _refuse_truncation(chat)
    turns = prompt_fields.value(chat.messages)
    _only_text(turns)
    asked: dict[str, Any] = {"messages": chat.messages}
    if any("reasoning_content" in turn for turn in turns):
        asked["messages"] = [_respelled(turn) for turn in turns]
    tools = prompt_fields.value(chat.tools)
    if tools is not None:
        if not tools:
            raise Unrenderable("tool-shape")
        asked["tools"] = chat.tools
    for name in ("add_generation_prompt", "continue_final_message", "add_special_tokens"):
        given = getattr(chat, name)
        if given is not ABSENT:
            asked[name] = given
    variables = _variables(chat)
    if variables:
        asked["chat_template_kwargs"] = variables
    return asked


def _variables(chat: ChatFields) -> dict[str, Any]:
    given = prompt_fields.value(chat.chat_template_kwargs)
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise Unrenderable("template-kwargs")
    documents = prompt_fields.value(chat.documents)
    effort = prompt_fields.value(chat.reasoning_effort)
    if documents is not None:
        given["documents"] = documents
    if effort is not None:
        given.setdefault("enable_thinking", effort != "none")
        given["reasoning_effort"] = effort
    return given


def _respelled(turn: dict[str, Any]) -> dict[str, Any]:
    """As vLLM reads a chat's message itself: `/tokenize` does not know the older name."""
    if "reasoning_content" not in turn:
        return turn
    turn = dict(turn)
    reasoning = turn.pop("reasoning_content")
    if reasoning is not None and turn.get("reasoning") is None:
        turn["reasoning"] = reasoning
    return turn


def _only_text(turns: Any) -> None:
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unrenderable("message-shape")
    for turn in turns:
        parts = turn.get("content")
        if isinstance(parts, str) or parts is None:
            continue
        if not isinstance(parts, list):
            raise Unrenderable("message-shape")
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else "text"
            if kind not in _TEXT_PARTS:
                raise Unrenderable("multimodal")

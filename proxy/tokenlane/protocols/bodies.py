"""Request bodies, as far as routing needs them: a few typed fields, the rest as raw slices.

Invariants:
- A field that can change the ids of a chat or completion request is named here; one that is not
  named here never reaches a template. (Served models may be configured otherwise; see Tokenizer.)
- Such a field stays raw JSON, a slice of the body: equal slices mean equal ids, so a cache hit
  needs neither a parse of the messages nor a render. An absent field is an empty slice.
- No body has a subclass: `type(body) is ChatBody` asks which one it is. isinstance takes five times
  as long to say no, of msgspec's structs.
"""

from enum import StrEnum
from typing import ClassVar, final

import msgspec
from msgspec import UNSET, UnsetType

ABSENT = msgspec.Raw(b"")
# Unset where the field is absent in every spelling.
Salt = str | None | UnsetType


class Kind(StrEnum):
    """The kind of a generation endpoint's prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    MESSAGES = "messages"
    RESPONSES = "responses"
    OTHER = "other"


class ChatFields(msgspec.Struct, omit_defaults=True):
    """What decides the ids of a chat request."""

    messages: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    reasoning_effort: msgspec.Raw = ABSENT
    add_generation_prompt: msgspec.Raw = ABSENT
    continue_final_message: msgspec.Raw = ABSENT
    add_special_tokens: msgspec.Raw = ABSENT
    truncate_prompt_tokens: msgspec.Raw = ABSENT
    truncation_side: msgspec.Raw = ABSENT
    kv_transfer_params: msgspec.Raw = ABSENT


class CompletionFields(msgspec.Struct, omit_defaults=True):
    """What decides the ids of a completion request."""

    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT
    suffix: msgspec.Raw = ABSENT
    add_special_tokens: msgspec.Raw = ABSENT
    truncate_prompt_tokens: msgspec.Raw = ABSENT
    truncation_side: msgspec.Raw = ABSENT


class _Converted(msgspec.Struct, omit_defaults=True):
    """Dialects that vLLM converts into chats: without these fields of a chat."""

    truncate_prompt_tokens: ClassVar[msgspec.Raw] = ABSENT
    truncation_side: ClassVar[msgspec.Raw] = ABSENT
    add_special_tokens: ClassVar[msgspec.Raw] = ABSENT
    add_generation_prompt: ClassVar[msgspec.Raw] = ABSENT
    continue_final_message: ClassVar[msgspec.Raw] = ABSENT


class MessagesFields(_Converted, omit_defaults=True):
    """What decides the ids of a request in Anthropic's dialect."""

    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT
    output_config: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    kv_transfer_params: msgspec.Raw = ABSENT


class ResponsesFields(_Converted, omit_defaults=True):
    """What decides the ids of a request in the dialect of OpenAI's responses."""

    # vLLM encodes these as it does text, though their template has put special tokens there itself.
    add_special_tokens: ClassVar[msgspec.Raw] = msgspec.Raw(b"true")
    input: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    truncation: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    previous_response_id: msgspec.Raw = ABSENT
    previous_input_messages: msgspec.Raw = ABSENT
    kv_transfer_params: msgspec.Raw = ABSENT


Conversation = ChatFields | MessagesFields | ResponsesFields

# How many fields decide a chat's ids, its messages the first; the others, where it says no more.
CHAT_FIELDS = len(ChatFields.__struct_fields__)
MESSAGES_ALONE = (ABSENT,) * (CHAT_FIELDS - 1)


@final
class ChatBody(ChatFields):
    """A chat request: what decides its ids, and what decides its way. tool_choice: decides the ids
    at some replicas. echo, return_prompt_text: ask for the prompt's text."""

    model: str | None = None
    tool_choice: msgspec.Raw = ABSENT
    echo: msgspec.Raw = ABSENT
    return_prompt_text: msgspec.Raw = ABSENT
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: Salt = UNSET


@final
class CompletionBody(CompletionFields):
    """A completion request."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    cache_salt: Salt = UNSET


@final
class MessagesBody(MessagesFields):
    """A request in Anthropic's dialect."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    cache_salt: Salt = UNSET


@final
class ResponsesBody(ResponsesFields):
    """A request in the dialect of OpenAI's responses. store: False where nobody asks for the
    response later."""

    model: str | None = None
    stream: bool | None = None
    store: bool | None = None
    max_output_tokens: int | None = None
    cache_salt: Salt = UNSET


@final
class OtherBody(msgspec.Struct):
    """A request to an endpoint that is forwarded without reading its prompt."""

    model: str | None = None
    stream: bool | None = None


# Bodies whose prompt is read, and those of them that vLLM renders with a chat template.
Prompted = ChatBody | CompletionBody | MessagesBody | ResponsesBody
Chatting = ChatBody | MessagesBody | ResponsesBody
Body = Prompted | OtherBody

BODIES: dict[Kind, type[Body]] = {
    Kind.CHAT: ChatBody,
    Kind.COMPLETION: CompletionBody,
    Kind.MESSAGES: MessagesBody,
    Kind.RESPONSES: ResponsesBody,
    Kind.OTHER: OtherBody,
}

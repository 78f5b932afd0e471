"""What goes on from a known conversation, in whichever dialect it came.

Invariant: a chat's messages are those that its template gets, and its system prompt is one of them.
"""

from typing import Any, Final

import msgspec

from tokenlane.protocols.bodies import ChatBody, Conversation, MessagesFields, ResponsesFields
from tokenlane.tokens.chat import anthropic_messages, openai_responses
from tokenlane.tokens.chat.anthropic_messages import Converted
from tokenlane.tokens.keys import KnownDigests, long_digest

_messages: Final = KnownDigests()
_responses: Final = KnownDigests()


def messages_behind(request: Conversation, given: Any) -> Converted:
    """Return the chat messages of those that follow others, none of which they change. Raise
    Unrenderable."""
    if type(request) is ChatBody:
        return given, []
    if isinstance(request, MessagesFields):
        return anthropic_messages.messages_behind(given)
    if isinstance(request, ResponsesFields):
        return openai_responses.messages_behind(given, [])
    return given, []


def system_digest(request: Conversation) -> bytes:
    """Return a digest of the system prompt that stands beside the messages (16 bytes; none where
    there is none). Raise Unrenderable."""
    if type(request) is ChatBody:
        return b""
    if isinstance(request, MessagesFields):
        return _messages.of(bytes(request.system), _of_messages)
    if isinstance(request, ResponsesFields):
        return _responses.of(bytes(request.instructions), _of_responses)
    return b""


def _of_messages(raw: bytes) -> bytes:
    return _of_text(anthropic_messages.system_of(MessagesFields(system=msgspec.Raw(raw))))


def _of_responses(raw: bytes) -> bytes:
    return _of_text(openai_responses.system_of(ResponsesFields(instructions=msgspec.Raw(raw))))


def _of_text(text: str) -> bytes:
    return long_digest(text.encode("utf-8", "surrogatepass"))

"""What goes on from a known conversation, in whichever dialect it came.

Invariant: a chat's messages are those that its template gets, and its system prompt is one of them.
"""

from hashlib import blake2b
from typing import Any

from tokenlane.protocols.bodies import Conversation, MessagesFields, ResponsesFields
from tokenlane.tokens.chat import anthropic_messages, openai_responses
from tokenlane.tokens.chat.anthropic_messages import Converted


def messages_behind(request: Conversation, given: Any) -> Converted:
    """Return the chat messages of those that follow others, none of which they change. Raise
    Unrenderable."""
    if isinstance(request, MessagesFields):
        return anthropic_messages.messages_behind(given)
    if isinstance(request, ResponsesFields):
        return openai_responses.messages_behind(given, [])
    return Converted(given, [])


def system_digest(request: Conversation) -> bytes:
    """Return a digest of the system prompt that stands beside the messages (16 bytes; none where
    there is none). Raise Unrenderable."""
    if isinstance(request, MessagesFields):
        system = anthropic_messages.system_of(request)
    elif isinstance(request, ResponsesFields):
        system = openai_responses.system_of(request)
    else:
        return b""
    return blake2b(system.encode("utf-8", "surrogatepass"), digest_size=16).digest()

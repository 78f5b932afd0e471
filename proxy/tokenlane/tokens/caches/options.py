"""What chats say beside their messages, as a template sees it: an agent repeats its tools in every
turn.

Invariants:
- Values never change: templates cannot change what they are given.
- Safe between threads, and bounded; at the bound all is forgotten.
"""

from typing import Any, Final

from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.chat.template import Template

# As JSON: in memory it is some ten times that, which is in no account.
_LIMIT_BYTES: Final = 256 * 1024
_ENTRY_BYTES: Final = 1024

# A request's template, and what that sees beside the messages.
Options = tuple[Template, dict[str, Any]]


class OptionsCache:
    """By a digest of a request's fields but the messages (`tokenlane.tokens.keys`)."""

    def __init__(self) -> None:
        self._known: dict[bytes, Options] = {}
        self._size_bytes = 0

    def get(self, digest: bytes) -> Options | None:
        """Return what was made of such fields."""
        return self._known.get(digest)

    def put(self, digest: bytes, request: ChatFields, options: Options) -> None:
        """Take in what was made of a request's fields."""
        raws = request.tools, request.documents, request.chat_template_kwargs
        size_bytes = _ENTRY_BYTES + sum([memoryview(raw).nbytes for raw in raws])
        if size_bytes > _LIMIT_BYTES:
            return
        self._size_bytes += size_bytes
        if self._size_bytes > _LIMIT_BYTES:
            self._known.clear()
            self._size_bytes = size_bytes
        self._known[digest] = options

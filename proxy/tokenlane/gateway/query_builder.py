"""A request as routing sees it: by its ids, else by the text of its prompt, else by its size.

Invariants:
- The query's `inexact` says how the prompt is known; an estimate never passes for exact.
- A head never reaches into what follows it: its length in tokens is a low estimate.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from tokenlane.config.settings import RoutingSettings
from tokenlane.gateway import message_scan
from tokenlane.gateway.message_scan import SYSTEM_ROLES
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import Body, CompletionBody, OtherBody, Prompted
from tokenlane.routing.decision import NO_SLOTS, Query, Reason
from tokenlane.routing.policies.prefix_hash import PrefixHash
from tokenlane.routing.policies.session import Session
from tokenlane.tokens.blocks import TEXT_BYTES_PER_TOKEN, TEXT_LIMIT_BYTES, text_hashes
from tokenlane.tokens.keys import front_bytes, head_bytes, prompt_bytes, prompt_size_bytes, salt

# Name and value.
Field = tuple[bytes, bytes]

# English text has four to five bytes a token, escaped JSON and code fewer; a longer head than the
# real one would take the first words of a conversation for the beginning that all share.
_HEAD_BYTES_PER_TOKEN: Final = 6


class QueryBuilder:
    """Makes queries. settings: they say what the policy reads besides the prompt. draw: makes
    random bits.

    headers: of the request, lower-case names. block_tokens: of the hashes of a prompt that is
    known by its text alone.
    """

    def __init__(self, settings: RoutingSettings, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._reads_head = False
        self._session_headers: tuple[bytes, ...] = ()
        self.configure(settings)

    def configure(self, settings: RoutingSettings) -> None:
        """Replace the settings from the next request on."""
        self._reads_head = settings.policy == PrefixHash.name
        self._session_headers = tuple(
            name.lower().encode("utf-8")
            for name in settings.session_headers
            if settings.policy == Session.name
        )
        self._parent_headers = tuple(name.lower().encode() for name in settings.parent_headers)

    def parent(self, headers: Sequence[Field]) -> int:
        """Return a number for the parent that waits for a request; 0 where none is named."""
        return session_of(headers, self._parent_headers)

    def query(
        self,
        model: str | None,
        request: Prompted,
        prompt: Prompt | None,
        why_not: str,
        block_tokens: int,
        headers: Sequence[Field],
        tenant: str = "",
        silent: frozenset[int] = NO_SLOTS,
    ) -> Query:
        """Build the query of a request whose prompt was read. prompt: its ids, or None and then
        `why_not` is the bail rung's reason. tenant: whose salt it has. silent: as Query has it."""
        session = session_of(headers, self._session_headers)
        parent = self.parent(headers)
        head = head_tokens(request, block_tokens) if self._reads_head else 0
        inexact: Reason | None = None
        if prompt is not None:
            blocks, block_tokens, tokens = prompt.blocks, prompt.block_tokens, prompt.tokens
            first_tokens = len(prompt.sequences[0]) // 4 if prompt.sequences else tokens
        else:
            tokens = first_tokens = prompt_size_bytes(request) // TEXT_BYTES_PER_TOKEN
            text = head_bytes(request, TEXT_LIMIT_BYTES)
            blocks = text_hashes(text, block_tokens, salt(model or "", request))
            inexact = Reason.NO_TOKENIZER if why_not == "no-tokenizer" else Reason.BAIL
        return Query(
            blocks, block_tokens, tokens, first_tokens, self._draw(), inexact,
            session, head, parent, tenant, silent,
        )  # fmt: skip

    def unread(self, request: Body, block_tokens: int, headers: Sequence[Field]) -> Query:
        """Build the query of a request whose prompt is not read: only its size is known."""
        size_bytes = 0 if type(request) is OtherBody else prompt_size_bytes(request)
        tokens = size_bytes // TEXT_BYTES_PER_TOKEN
        session = session_of(headers, self._session_headers)
        return Query(b"", block_tokens, tokens, tokens, self._draw(), Reason.NO_TOKENS, session)


def session_of(headers: Sequence[Field], names: Iterable[bytes]) -> int:
    """Return a number for the session that the first of these headers names; 0 where none does.

    names: lower case, in order of rank."""
    for name in names:
        for field, value in headers:
            if field == name and value:
                return xxh3_64_intdigest(value) or 1
    return 0


def head_tokens(request: Body, block_tokens: int) -> int:
    """Return about how many tokens a conversation's common beginning has: tools, system prompt and
    messages, and the first message behind them where those fill no block. 0 where that cannot be
    known.

    At most TEXT_LIMIT_BYTES are looked at: about 0.1 ms.
    """
    if type(request) is CompletionBody or type(request) is OtherBody:
        return 0
    raw = prompt_bytes(request)
    text = message_scan.beginning(raw)
    front_size_bytes = memoryview(request.tools).nbytes + front_bytes(request).nbytes
    least_bytes = max(_HEAD_BYTES_PER_TOKEN * block_tokens - front_size_bytes, 1)
    end = message_scan.first_place(text)
    try:
        for message, _start, stop in message_scan.messages(text):
            system = isinstance(message, dict) and message["role"] in SYSTEM_ROLES
            if system or end < least_bytes:
                end = stop
            if not system:
                break
    except (ValueError, KeyError, TypeError, RecursionError):
        # The last message was read, or one continues beyond the limit.
        if raw.nbytes > TEXT_LIMIT_BYTES and end < least_bytes:
            end = len(text)
    return (len(text[:end].encode()) + front_size_bytes) // _HEAD_BYTES_PER_TOKEN

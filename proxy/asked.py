"""A request as routing sees it: by its ids, else by the text of its prompt, else by its size.

Invariants:
- How the prompt was known is the query's `inexact` word; nothing estimated passes for exact.
"""

from proxy.body import Body, ChatBody, CompletionBody, OtherBody
from proxy.model import Prompt
from proxy.routing.blocks import TEXT_BYTES_PER_TOKEN, TEXT_LIMIT_BYTES, text_hashes
from proxy.routing.decision import Query, Reason
from proxy.tokens.keys import prompt_bytes, salt


def query(
    model: str | None,
    request: ChatBody | CompletionBody,
    prompt: Prompt | None,
    why_not: str,
    *,
    block_tokens: int,
    draw: int,
) -> Query:
    """The query of a request whose prompt was read. prompt: its ids, or None and then `why_not`
    is the bail rung's reason. block_tokens: of the hashes of a prompt known by its text alone."""
    if prompt is not None:
        return Query.of(prompt, draw)
    raw = prompt_bytes(request)
    estimate_tokens = raw.nbytes // TEXT_BYTES_PER_TOKEN
    blocks = text_hashes(bytes(raw[:TEXT_LIMIT_BYTES]), block_tokens, salt(model or "", request))
    reason = Reason.NO_TOKENIZER if why_not == "no-tokenizer" else Reason.BAIL
    return Query(blocks, block_tokens, estimate_tokens, estimate_tokens, draw, reason)


def unread(request: Body, *, block_tokens: int, draw: int) -> Query:
    """The query of a request whose prompt is not looked at: only its size is known."""
    size_bytes = 0 if isinstance(request, OtherBody) else prompt_bytes(request).nbytes
    tokens = size_bytes // TEXT_BYTES_PER_TOKEN
    return Query(b"", block_tokens, tokens, tokens, draw, Reason.NO_TOKENS)

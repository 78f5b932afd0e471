"""What a prompt is called before its ids are known: cache keys, and the salt of its block hashes.

Invariants:
- A key covers everything that decides the ids and the block hashes; equal bytes give equal keys,
  and nothing is parsed to make one.
- Every value is a whole JSON value, so no two requests run into the same bytes by being cut
  elsewhere.
"""

from functools import lru_cache

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from proxy.body import ChatBody, CompletionBody
from proxy.tokens.fields import ABSENT, ChatFields, CompletionFields

# The fields that decide ids come first, in the order of the base struct; the first of them is the
# prompt itself, and mostly the only one.
_CHAT_FIELDS = len(ChatFields.__struct_fields__)
_COMPLETION_FIELDS = len(CompletionFields.__struct_fields__)
_CHAT_ABSENT = (ABSENT,) * (_CHAT_FIELDS - 1)
_COMPLETION_ABSENT = (ABSENT,) * (_COMPLETION_FIELDS - 1)


def token_key(model: str, body: ChatBody | CompletionBody) -> bytes:
    """A digest of everything that decides the prompt's ids and block hashes (16 bytes)."""
    values = msgspec.structs.astuple(body)
    if isinstance(body, ChatBody):
        others, absent = values[1:_CHAT_FIELDS], _CHAT_ABSENT
    else:
        others, absent = values[1:_COMPLETION_FIELDS], _COMPLETION_ABSENT
    seed = _seed(absent is _CHAT_ABSENT, salt(model, body))
    if others == absent:
        return xxh3_128_digest(values[0], seed)
    hasher = xxh3_128(values[0], seed)
    for position, raw in enumerate(others):
        if raw is not ABSENT:
            view = memoryview(raw)
            hasher.update(b"%d:%d:" % (position, view.nbytes))
            hasher.update(view)
    return hasher.digest()


def salt(model: str, body: ChatBody | CompletionBody) -> bytes:
    """What keeps this prompt's blocks apart from equal ones: the model, and vLLM's cache_salt."""
    return salt_of(model, body.cache_salt)


def salt_of(model: str, cache_salt: str | None) -> bytes:
    """As `salt`, of a request for this model with this cache_salt (None or empty: without)."""
    if not cache_salt:
        return _plain_salt(model)
    return f"{model}\0{cache_salt}".encode("utf-8", "surrogatepass")


@lru_cache(maxsize=256)
def _plain_salt(model: str) -> bytes:
    return f"{model}\0".encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def _seed(chat: bool, apart: bytes) -> int:
    return xxh3_64_intdigest(apart, chat)


def prompt_bytes(body: ChatBody | CompletionBody) -> memoryview:
    """The raw JSON of the prompt itself: its size predicts the work, its head names a prefix."""
    return memoryview(body.messages if isinstance(body, ChatBody) else body.prompt)


def is_ids(body: ChatBody | CompletionBody) -> bool:
    """Whether a completion's prompt came as ids: [1, …] or [[1, …], …]."""
    if isinstance(body, ChatBody):
        return False
    raw = memoryview(body.prompt)
    head = bytes(raw[:64]).replace(b" ", b"").lstrip(b"[\n\r\t")
    return raw[0] == ord("[") and head[:1].isdigit()

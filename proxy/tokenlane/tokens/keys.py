"""Cache keys of a prompt whose ids are not known yet, and the salt of its block hashes.

Invariants:
- A key covers everything that decides the ids and the block hashes; equal bytes give equal keys,
  and nothing is parsed to make one.
- A request's key is this process's own: nobody outside can find two requests that share one. Salts
  of block hashes are the same in all processes.
- Nothing that a client sends is kept: a key is a digest, and salts are short
  (`tokenlane.protocols.inspection.short_salt`).
- Every value is a whole JSON value, so no two requests run into the same bytes by being cut
  elsewhere.
"""

from collections.abc import Callable
from hashlib import blake2b
from secrets import randbits
from typing import ClassVar, Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from tokenlane.protocols import bodies
from tokenlane.protocols.bodies import (
    ChatBody,
    ChatFields,
    CompletionBody,
    CompletionFields,
    Conversation,
    Kind,
    MessagesBody,
    MessagesFields,
    Prompted,
    ResponsesBody,
    ResponsesFields,
    Salt,
)

_NOTHING: Final = memoryview(b"")
# A name of this module is found sooner than another's (compiled).
_ABSENT: Final = bodies.ABSENT
_astuple: Final = msgspec.structs.astuple
# Tools are written as JSON by Python, in 10 ns a byte; a message's text is copied, in 0.8.
_OPTIONS_WEIGHT: Final = 12
# Limit of all short fields together: flags, efforts, limits, fields that are passed on.
_OPTIONS_LIMIT_BYTES: Final = 64 * 1024

# How a part of a message says that it is a picture; and which messages are looked through for one:
# shorter ones are read as fast, longer ones take more than 0.4 ms.
_PICTURES: Final[dict[type, bytes]] = {ChatBody: b'"image_url"', ResponsesBody: b'"input_image"'}
_LOOKED_THROUGH: Final = (32 * 1024, 1024 * 1024)
# Samples that tell text from a picture.
_LOOKS: Final = 8
_LOOK_BYTES: Final = 64

# The fields that decide ids come first, in the order of the base struct; the first of them is the
# prompt itself, and mostly the only one.
_CHAT_FIELDS: Final[int] = bodies.CHAT_FIELDS
_MESSAGES_ALONE: Final = bodies.MESSAGES_ALONE
# Other dialects also get a number, so that equal bytes of two dialects are two prompts.
_OTHERS: Final[dict[type, tuple[int, int]]] = {
    CompletionBody: (len(CompletionFields.__struct_fields__), 0),
    MessagesBody: (len(MessagesFields.__struct_fields__), 2),
    ResponsesBody: (len(ResponsesFields.__struct_fields__), 3),
}
# Whoever knows the seed of XXH3 can make two prompts that share a key.
_PROCESS_SEED: Final = randbits(64)


def token_key(model: str, own: str, body: Prompted) -> bytes:
    """Return a digest of everything that decides the prompt's ids and block hashes (16 bytes). own:
    the model whose tokenizer makes the ids; an adapter's base may change."""
    values = _astuple(body)
    if type(body) is ChatBody:
        others, absent, number = values[1:_CHAT_FIELDS], _MESSAGES_ALONE, 1
    else:
        count, number = _OTHERS[type(body)]
        others, absent = values[1:count], (_ABSENT,) * (count - 1)
    named = b"%b\0%b" % (own.encode("utf-8", "surrogatepass"), salt(model, body))
    seed = xxh3_64_intdigest(named, _PROCESS_SEED ^ number)
    if others == absent:
        return xxh3_128_digest(values[0], seed)
    return _digest(xxh3_128(values[0], seed), others)


def opening_seed(kind: Kind, own: str, opening: bytes) -> int:
    """Return the seed of the keys of bodies of a kind that begin so. own: as `token_key`'s."""
    named = b"%b\0%b" % (kind.encode(), own.encode("utf-8", "surrogatepass"))
    return xxh3_64_intdigest(opening, xxh3_64_intdigest(named, _PROCESS_SEED))


def tail_key(seed: int, salt: bytes, tail: bytes) -> bytes:
    """As `token_key`, of a body by what follows its opening. seed: of that; salt: of the hashes."""
    return xxh3_128_digest(tail, xxh3_64_intdigest(salt, seed))


def options_digest(request: Conversation) -> bytes:
    """Return a digest of all that decides a conversation's prompt but its messages and its system
    prompt (16 bytes; none for a chat that says nothing else). Whoever finds two requests with the
    same one decides how another's is rendered: hence blake2b.
    """
    values = _astuple(request)
    if type(request) is ChatBody or isinstance(request, ChatFields):  # the usual one first
        others, number = values[1:_CHAT_FIELDS], 1
        if others == _MESSAGES_ALONE:
            return b""
    else:
        body = MessagesBody if isinstance(request, MessagesFields) else ResponsesBody
        count, number = _OTHERS[body]
        # The system prompt is the second of the fields.
        others = values[2:count]
    # Tools stand first among the others.
    tools = _tools.of(bytes(request.tools), long_digest)
    return _digest(blake2b(b"%d%b" % (number, tools), digest_size=16), others[1:])


def long_digest(text: bytes) -> bytes:
    """Return what nobody finds another text for (16 bytes)."""
    return blake2b(text, digest_size=16).digest()


class KnownDigests:
    """Digests of what many requests say in the same words, tools or a system prompt: to compare
    these takes a tenth of the time. At their limit all are forgotten."""

    _LIMIT_BYTES: ClassVar[int] = 2 * 1024 * 1024
    _ENTRY_BYTES: ClassVar[int] = 400

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, bytes]] = {}
        self._size_bytes = 0

    def of(self, said: bytes, make: Callable[[bytes], bytes]) -> bytes:
        """Return the digest of it, as known, or else made. Raise what `make` raises."""
        name = xxh3_64_intdigest(said, _PROCESS_SEED)
        known = self._known.get(name)
        if known is not None and known[0] == said:
            return known[1]
        digest = make(said)
        size_bytes = len(said) + self._ENTRY_BYTES
        if size_bytes <= self._LIMIT_BYTES // 16:
            self._size_bytes += size_bytes
            if self._size_bytes > self._LIMIT_BYTES:
                self._known.clear()
                self._size_bytes = size_bytes
            self._known[name] = said, digest
        return digest


_tools: Final = KnownDigests()


class _Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


def _digest(hasher: _Hasher, others: tuple[msgspec.Raw, ...]) -> bytes:
    for position, raw in enumerate(others):
        if raw is not _ABSENT:
            view = memoryview(raw)
            hasher.update(b"%d:%d:" % (position, view.nbytes))
            hasher.update(view)
    return hasher.digest()


def salt(model: str, body: Prompted) -> bytes:
    """Return what keeps this prompt's blocks apart from equal ones: the model, and vLLM's
    cache_salt."""
    return salt_of(model, body.cache_salt)


def salt_of(model: str, cache_salt: Salt) -> bytes:
    """As `salt`, of a request for this model with this cache_salt (if any; a short one)."""
    return f"{model}\0{cache_salt or ''}".encode("utf-8", "surrogatepass")


def prompt_bytes(body: Prompted) -> memoryview:
    """Return the raw JSON of the prompt itself, without the system prompt in front of it."""
    return memoryview(_prompt(body))


def _prompt(body: Prompted) -> msgspec.Raw:
    if type(body) is ChatBody or type(body) is MessagesBody:
        return body.messages
    return body.input if type(body) is ResponsesBody else body.prompt


def front_bytes(body: Prompted) -> memoryview:
    """Return the raw JSON of what a dialect says before its messages: the system prompt."""
    if type(body) is ChatBody or type(body) is CompletionBody:
        return _NOTHING
    return memoryview(body.system if type(body) is MessagesBody else body.instructions)


def options_size_bytes(body: Prompted) -> int:
    """Return the raw JSON of what a template may show beside the messages: tools, above all."""
    if type(body) is CompletionBody:
        return 0
    documents = body.documents if type(body) is ChatBody else _ABSENT
    return len(body.tools) + len(body.chat_template_kwargs) + len(documents)


def unreadable(body: Prompted) -> str:
    """Return why a prompt is not even begun to be read; empty for most."""
    if _has_long_options(body):
        return "field-shape"
    return "multimodal" if _shows_picture(body) else ""


def _shows_picture(body: Prompted) -> bool:
    """Return whether a picture stands in long messages, as most clients write it."""
    kind = _PICTURES.get(type(body))
    raw = prompt_bytes(body)
    if kind is None or not _LOOKED_THROUGH[0] <= raw.nbytes <= _LOOKED_THROUGH[1]:
        return False
    # Pictures are long words, as URLs of data; the time to search the rest is for nothing.
    step = raw.nbytes // _LOOKS
    places = range(step // 2, raw.nbytes, step)
    if all(bytes(raw[at : at + _LOOK_BYTES]).find(b" ") >= 0 for at in places):
        return False
    messages = bytes(raw)
    at = messages.find(kind)
    return at >= 0 and b"".join(messages[max(0, at - 16) : at].split()).endswith(b'"type":')


def _has_long_options(body: Prompted) -> bool:
    """Return whether a field outside the prompt is longer than any that has a meaning: it would be
    read beside what `prompt_size_bytes` says."""
    count = _CHAT_FIELDS if type(body) is ChatBody else _OTHERS[type(body)][0]
    others = _astuple(body)[1:count]
    if others == (_ABSENT,) * (count - 1):
        return False
    size_bytes = sum([memoryview(raw).nbytes for raw in others if raw is not _ABSENT])
    return size_bytes - front_bytes(body).nbytes - options_size_bytes(body) > _OPTIONS_LIMIT_BYTES


def prompt_size_bytes(body: Prompted) -> int:
    """Return the bytes of all that becomes the prompt's text, which predicts the work."""
    return len(_prompt(body)) + len(front_bytes(body)) + options_size_bytes(body)


def render_size_bytes(body: Prompted, size_bytes: int) -> int:
    """As many bytes of messages as would take as long to render as such a prompt of this size."""
    return size_bytes + (_OPTIONS_WEIGHT - 1) * options_size_bytes(body)


def head_bytes(body: Prompted, limit_bytes: int) -> bytes:
    """Return the first bytes of both together: they name a prefix where ids are not known."""
    front = bytes(front_bytes(body)[:limit_bytes])
    return front + bytes(prompt_bytes(body)[: limit_bytes - len(front)])

"""Where a body may be left within its longest text: behind a document that others ask about, too.

Invariants:
- A mark stands between two words, where the prompt may be cut
  (`tokenlane.tokens.encode.word_cuts`), and where the bytes before it are known to say the
  characters before it: the text is spelled as one of the usual encoders spells it.
- What follows is read as the end of that very text: it begins with a word that no client knows, and
  so has to be what is read for it.
- What a template asks of the text, it is asked of all of it.
"""

import json
from collections.abc import Callable, Mapping
from secrets import randbits
from typing import Any, Final, NamedTuple

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import Conversation
from tokenlane.tokens.caches.body_prefixes import BodyMark
from tokenlane.tokens.caches.prefixes import Prefix
from tokenlane.tokens.chat.dialects import messages_behind
from tokenlane.tokens.chat.forms import TEXTS, forms_of, owners, texts_of
from tokenlane.tokens.chat.residual import Residual, base_of, text_at
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.word_cuts import GRID_CHARS

# Stands for a text's known part where the rest of it is read.
PLACE: Final = f"{randbits(128):032x}"
# A shorter text is read again.
_LEAST_CHARS: Final = 2 * GRID_CHARS
# How far before the end of a text its marks stand, in GRID_CHARS: what is behind the document may
# be long, too.
_STEPS_BACK: Final = (16, 8, 4, 3, 2, 1)
_OPENING_LIMIT_BYTES: Final = 1024
_NAME_CHARS: Final = 64
_ENCODED_CHARS: Final = 64 * 1024
_WAYS: Final = (
    msgspec.json.Encoder().encode,
    lambda text: json.dumps(text).encode(),
)


class LongText(NamedTuple):
    """The longest text of a prompt. number: of all texts; message: whose it is; first: the number
    of that one's first text; part: of the residual, which shows it, but for so many characters that
    it skips at its beginning; start, end: characters of the rendering before it and its end."""

    number: int
    message: int
    first: int
    part: int
    skipped: int
    start: int
    end: int


def longest_text(residual: Residual, forms: tuple[str, ...], texts: list[str]) -> LongText | None:
    """Return the longest text, if it is long, and shown once, behind all texts of the messages
    before and in front of all others."""
    size_chars = max(map(len, texts), default=0)
    if size_chars < _LEAST_CHARS:
        return None
    number = list(map(len, texts)).index(size_chars)
    message = owners(forms)[number]
    first = sum([TEXTS[form] for form in forms[:message]])
    start = 0
    for part, said in enumerate(residual.parts):
        if isinstance(said, int) and base_of(said) >= first:
            shown, text = text_at(texts, said), texts[number]
            # By its beginning: to search for a long text takes a millisecond.
            skipped = text.find(shown[:_NAME_CHARS])
            if base_of(said) != number or not text.startswith(shown, max(0, skipped)):
                return None
            return LongText(number, message, first, part, skipped, start, start + len(shown))
        start += len(said) if isinstance(said, str) else len(text_at(texts, said))
    return None


def places(encoder: Encoder, text: str, long: LongText) -> list[int]:
    """Return where a rendering is to be cut within its longest text, ascending."""
    found: list[int] = []
    for steps in _STEPS_BACK:
        near = max(long.start + 1, long.end - steps * GRID_CHARS)
        found += encoder.starts(text, near, min(near + GRID_CHARS, long.end), words=True)[:1]
    return sorted(set(found))


def marks_within(
    request: Conversation,
    long: LongText,
    forms: tuple[str, ...],
    texts: list[str],
    prompt: Prefix,
    body: bytes,
    ends: Mapping[int, int],
    block_tokens: int,
) -> list[BodyMark]:
    """Return the marks within the longest text, where its prompt has cuts. ends: where a body may
    be left, by how many messages stand before; before the first one, too."""
    begin, end = ends.get(long.message), ends.get(long.message + 1)
    if begin is None or end is None:
        return []
    begin = body.find(b"{", begin, end)
    text, split = texts[long.number], long.number - long.first
    for encode in _WAYS if begin >= 0 else ():
        at = body.find(encode(text[:_NAME_CHARS])[:-1], begin, begin + _OPENING_LIMIT_BYTES) + 1
        if not at:
            continue
        opening, marks = body[begin:at], list[BodyMark]()
        chars, block_bytes = 0, 4 * block_tokens
        for mark in prompt.marks:
            within = mark.chars - long.start
            full_bytes = mark.ids_bytes // block_bytes * block_bytes
            until = long.skipped + within
            # A place that two prompts share may be listed twice.
            if within <= 0 or mark.chars >= long.end or until == chars or not full_bytes:
                continue
            at = _behind(encode, text[chars:until], body, at)
            if at < 0:
                break
            chars = until
            marks.append(
                BodyMark(
                    at, long.message, long.first, long.part, within, mark.ids_bytes,
                    prompt.ids[full_bytes : mark.ids_bytes], text[until - 1], opening, split, chars,
                )
            )  # fmt: skip
        if not marks:
            continue
        rest = body[marks[-1].at : end]
        said = said_by(request, opening + PLACE.encode() + rest, forms[long.message])
        wanted = texts[long.first : long.first + TEXTS[forms[long.message]]]
        wanted[split] = PLACE + text[chars:]
        return marks if said == wanted else []
    return []


def _behind(encode: Callable[[str], bytes], text: str, body: bytes, at: int) -> int:
    """Return where a text ends that a body has at this place, spelled so; -1 where it has not."""
    # Not all at once: each call holds the GIL.
    for start in range(0, len(text), _ENCODED_CHARS):
        spelled = encode(text[start : start + _ENCODED_CHARS])[1:-1]
        if not body.startswith(spelled, at):
            return -1
        at += len(spelled)
    return at


def said_by(request: Conversation, raw: bytes, form: str) -> list[str] | None:
    """Return the texts of a message, as one of this form has them; None where it has another."""
    try:
        given: Any = [msgspec.json.decode(raw)]
        messages, _ = messages_behind(request, given)
        return texts_of(messages, (form,)) if forms_of(messages) == (form,) else None
    except (ValueError, RecursionError, RequestError, Unrenderable):
        return None

"""What can be read of a body's JSON without decoding it: how many values it has (decoding them all
at once holds the GIL, and each takes up to a hundred times its bytes), and which bytes belong to
which field.

Invariants:
- Counting parses nothing, and no step of it holds the GIL for long. Brackets and commas in texts
  do not count.
- A field is a slice of the body. What vLLM reads as JSON is read here, too: Python's json takes
  NaN, Infinity and numbers out of range.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

# Counting costs 0.5 ns a byte, which shorter bodies do not pay: nothing but empty lists, they
# take 10 ms to make.
FEW_BYTES: Final = 512 * 1024
# Lists and objects with their keys take about 0.4 us each, other values in a list 10 to 30 ns: this
# is 60 ms of them. The largest contexts have a million ids, and 40,000 messages' worth of text.
_MOST_PARTS: Final = 150_000
_MOST_ITEMS: Final = 2_000_000
# To find a text takes 0.1 us.
_MOST_TEXTS: Final = 300_000
_STEP_BYTES: Final = 64 * 1024


def are_few(raw: bytes) -> bool:
    """Return whether the JSON may be decoded here: it has few enough lists, objects, keys and
    items."""
    return len(raw) <= FEW_BYTES or _within(raw, {b"[{:": _MOST_PARTS, b",": _MOST_ITEMS})


def _within(raw: bytes, limits: dict[bytes, int]) -> bool:
    """Return whether there are no more than so many of any of these marks outside texts."""
    # An upper bound first: those in texts are counted, too.
    left = {marks: limit for marks, limit in limits.items() if _count(raw, marks) > limit}
    if not left:
        return True
    for outside in _outside_texts(raw):
        for marks in left:
            left[marks] -= _count(outside, marks)
        if min(left.values()) < 0:
            return False
    return True


def _count(raw: bytes, marks: bytes) -> int:
    return len(raw) - len(raw.translate(None, marks))


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """Yield what stands in no text. Behind the most texts that are looked for, that is all."""
    texts, within, carry = 0, False, b""
    for at in range(0, len(raw), _STEP_BYTES):
        piece = (carry + raw[at : at + _STEP_BYTES]).replace(b"\\\\", b"")
        carry = piece[len(piece.rstrip(b"\\")) :]  # what it escapes is in the next piece
        pieces = piece.removesuffix(b"\\").replace(b'\\"', b"").split(b'"')
        yield b"".join(pieces[within::2])
        within ^= len(pieces) % 2 == 0
        texts += len(pieces) // 2
        if texts > _MOST_TEXTS:
            yield raw[at:]
            return


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# Python's json takes up to 2 us for each.
_MOST_FOR_PYTHON: Final = 20_000
_encode = msgspec.json.Encoder().encode
_scan = json.JSONDecoder().raw_decode
_BLANK = re.compile(r"[ \t\r\n]*")


def fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object by their names, of repeated ones the last. Raise
    ValueError where it is none, or has a name that is no Unicode."""
    try:
        return strict_fields(raw)
    except ValueError:
        return _fields_for_python(raw)


def strict_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return the same, but raise ValueError for what other parsers do not take, too."""
    try:
        return _decode(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _fields_for_python(raw: bytes) -> dict[str, msgspec.Raw]:
    if not _within(raw, {b"[{:,": _MOST_FOR_PYTHON}):
        raise ValueError("too many values")
    text = raw.decode()
    found: dict[str, msgspec.Raw] = {}
    at, mark = _behind_blank(text, 0), "{"
    try:
        while text[at : at + 1] == mark:
            at = _behind_blank(text, at + 1)
            if mark == "{" and text[at : at + 1] == "}":
                break
            name, at = _scan(text, at)
            at = _behind_blank(text, at)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                raise ValueError("no field")
            name.encode()
            start = _behind_blank(text, at + 1)
            value, end = _scan(text, start)
            _encode(value)  # which takes no half of a surrogate pair, nor does vLLM
            found[name] = msgspec.Raw(text[start:end].encode())
            at, mark = _behind_blank(text, end), ","
    except (RecursionError, OverflowError):
        raise ValueError("nested too deeply, or a number too long") from None
    if text[at : at + 1] != "}" or _behind_blank(text, at + 1) != len(text):
        raise ValueError("no object")
    return found


def _behind_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()

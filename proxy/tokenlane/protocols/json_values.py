"""How many values a piece of JSON has, told before any of them is made: made all at once they hold
the GIL, and each takes up to a hundred times the bytes that it came in.

Invariants:
- Nothing is parsed, and no step over the bytes holds the GIL for long.
- Brackets and commas in texts do not count.
"""

from typing import Final

# Counting costs 0.5 ns a byte, which shorter bodies do not pay: nothing but empty lists, they
# take 10 ms to make.
FEW_BYTES: Final = 512 * 1024
# Lists and objects with their keys take about 0.4 us each, other values in a list 10 to 30 ns: this
# is 60 ms of them. The largest contexts have a million ids, and 40,000 messages' worth of text.
_MOST_PARTS: Final = 150_000
_MOST_ITEMS: Final = 2_000_000


def are_few(raw: bytes) -> bool:
    """Whether they may be made here: few enough lists, objects, keys and items in all."""
    return len(raw) <= FEW_BYTES or (
        _within(raw, b"[{:", _MOST_PARTS)
        and (len(raw) <= 2 * _MOST_ITEMS or _within(raw, b",", _MOST_ITEMS))
    )


def _within(raw: bytes, marks: bytes, limit: int) -> bool:
    if len(raw) - len(raw.translate(None, marks)) <= limit:
        return True  # mostly: those in texts are counted, too
    found, at = 0, 0
    while found <= limit:
        quote = raw.find(b'"', at)
        end = len(raw) if quote < 0 else quote
        if end > at:
            found += sum(raw.count(mark, at, end) for mark in marks)
        if quote < 0:
            return found <= limit
        at = _behind_text(raw, quote + 1)
    return False


def _behind_text(raw: bytes, at: int) -> int:
    """Where a text that begins here has ended."""
    while True:
        quote = raw.find(b'"', at)
        if quote < 0:
            return len(raw)
        at = quote + 1
        before = quote - 1
        while raw[before] == 0x5C:  # a backslash
            before -= 1
        if (quote - before) % 2:
            return at

"""The shape cache: conversations that differ in their messages' texts alone -> how they render.

Invariants:
- A shape covers all that a template sees beside the texts: the messages' forms, and every option
  unchanged.
- Learned from the second conversation of a shape on, or where others may go on from it at once:
  beside its rendering by the engines. What a residual makes of that one's texts must be the same,
  or it is not kept.
- Of a conversation that goes on from one whose residual was learned so, it is taken in as it is.
- Bounded in bytes, in messages and in residuals for each shape (those that its guards tell apart);
  a residual over its own limit is not taken in at all.
- Safe between threads: residuals never change, order and counts change under a lock.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tokenlane.tokens.caches.lru import BoundedCache
from tokenlane.tokens.chat.forms import forms_of, texts_of
from tokenlane.tokens.chat.residual import Residual, Unknown

# Longer conversations hardly ever have a shape that was seen before. To learn one takes 10 to
# 20 us a message, in bytecode: a thread has that time, the loop for a few messages only.
_MOST_MESSAGES: Final = 512
_FEW_MESSAGES: Final = 16
# Of each message, where others may go on: learned from shorter ones, it would take more than four
# times as long as to read and render them.
_LEAST_CHARS: Final = 350
# Attempts to learn one shape.
_MOST_TRIES: Final = 4
_ENTRY_BYTES: Final = 240


# A digest of all of a conversation but its messages, and their forms.
Name = tuple[bytes, tuple[str, ...]]


class Shape:
    """A conversation's. messages: the request's, of the forms that the name has."""

    __slots__ = ("_messages", "_texts", "name")

    def __init__(self, name: Name, messages: list[Any]) -> None:
        self.name = name
        self._messages = messages
        self._texts: list[str] | None = None

    @property
    def texts(self) -> list[str]:
        """The messages' texts, in order. Raise Unrenderable."""
        if self._texts is None:
            self._texts = texts_of(self._messages, self.name[1])
        return self._texts


def shape_of(digest: bytes, messages: Any) -> Shape | None:
    """Return the shape; None where a message has no form. digest: of all but the messages
    (`tokenlane.tokens.keys.options_digest`)."""
    if not isinstance(messages, list) or len(messages) > _MOST_MESSAGES:
        return None
    forms = forms_of(messages)
    if forms is None:
        return None
    return Shape((digest, forms), messages)


# (forms, texts) -> what a template makes of such messages. Raises Unknown.
MakeResidual = Callable[[tuple[str, ...], list[str]], Residual]


class _Known(msgspec.Struct):
    """The residuals of a shape, and the attempts to learn one."""

    size_bytes: int
    residuals: tuple[Residual, ...] = ()
    tries: int = 0


class ShapeCache(BoundedCache[Name, _Known]):
    """LRU over the shapes of one tokenizer's conversations."""

    def residual(self, shape: Shape) -> Residual | None:
        """Return what renders a conversation, if its shape is known."""
        for residual in self.known(shape.name):
            if residual.fits(shape.texts):
                return residual
        return None

    def known(self, name: Name) -> tuple[Residual, ...]:
        """Return the residuals of a shape, of which at most one fits a conversation."""
        known = self._items.get(name)
        found = () if known is None else known.residuals
        with self._lock:
            if found:
                self.hits += 1
                if name in self._items:
                    self._items.move_to_end(name)
            else:
                self.misses += 1
        return found

    def learn(
        self, shape: Shape, text: str, make: MakeResidual, *, hasty: bool, at_once: bool = False
    ) -> Residual | None:
        """Learn from a rendered conversation of this shape; return its residual. hasty: there is no
        time for a long one. at_once: also from the first one, unless its messages are short."""
        at_once = at_once and len(text) >= _LEAST_CHARS * len(shape.name[1])
        with self._lock:
            known = self._seen(shape.name)
            if known is None and not at_once:
                return None
            # What the template adds to the texts would be kept; to make it takes 100 times as long
            # as to see that it is too much.
            if not self.takes(len(text) - sum(map(len, shape.texts))):
                return None
            known = known or _Known(0)
            if known.tries == _MOST_TRIES or (hasty and len(shape.name[1]) > _FEW_MESSAGES):
                return None
            known.tries += 1
        try:
            residual = make(shape.name[1], shape.texts)
        except Unknown:
            return None
        if not self.takes(residual.size_bytes) or residual.filled(shape.texts) != text:
            return None
        self._take(shape.name, known, residual)
        return residual

    def grown(self, name: Name, residual: Residual) -> None:
        """Take in the residual of a conversation that goes on from a known one."""
        with self._lock:
            known = self._seen(name)
        if known is not None and len(known.residuals) < _MOST_TRIES:
            self._take(name, known, residual)

    def _seen(self, name: Name) -> _Known | None:
        """Return what is known of a shape; None for one that is seen for the first time, as a
        conversation seen once is not a shape yet."""
        known = self._items.get(name)
        if known is None:
            made = _Known(_ENTRY_BYTES + 8 * len(name[1]))
            if self.takes(made.size_bytes):
                self._items[name] = made
                self.budget.grow(self, made.size_bytes)
        return known

    def _take(self, name: Name, known: _Known, residual: Residual) -> None:
        if not self.takes(residual.size_bytes):
            return
        with self._lock:
            known.residuals += (residual,)
            if self._items.get(name) is known:
                known.size_bytes += residual.size_bytes
                self.budget.grow(self, residual.size_bytes)

    def size_of(self, key: Name, entry: _Known) -> int:
        """Return the memory of a shape's residuals."""
        return entry.size_bytes

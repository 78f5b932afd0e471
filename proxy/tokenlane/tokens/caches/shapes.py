"""The shape cache: conversations that differ in their messages' texts alone -> how they render.

Invariants:
- A shape covers all that a template sees beside the texts: the roles, and every option unchanged.
- Learned from the second conversation of a shape on, beside its rendering by the engines: what a
  residual makes of that one's texts must be the same, or it is not kept.
- Bounded in bytes, in messages and in residuals for each shape (those that its guards tell apart);
  a residual over its own limit is not taken in at all.
- Safe between threads: residuals never change, order and counts change under a lock.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tokenlane.protocols.prompt_fields import ChatFields
from tokenlane.tokens.caches.lru import BoundedCache, Budget
from tokenlane.tokens.chat.conversation import told
from tokenlane.tokens.chat.residual import Residual, Unknown
from tokenlane.tokens.keys import options_digest

# Longer conversations hardly ever have a shape that was seen before. To learn one takes 40 to
# 90 us a message, in bytecode: a thread has that time, the loop for a few messages only.
_MOST_MESSAGES: Final = 512
_FEW_MESSAGES: Final = 16
# Attempts to learn one shape.
_MOST_TRIES: Final = 4
_ENTRY_BYTES: Final = 240


class Shape(NamedTuple):
    """name: the roles, and a digest of all fields but the messages. texts: the messages', in
    order."""

    name: tuple[bytes, tuple[str, ...]]
    texts: list[str]


def shape_of(request: ChatFields, messages: Any, *, converted: bool) -> Shape | None:
    """Return the shape; None where a message is more than a role and a text. converted: it came in
    another dialect, of which vLLM takes things that it refuses in a chat."""
    if not isinstance(messages, list) or len(messages) > _MOST_MESSAGES:
        return None
    plainly = told(messages)
    if plainly is None:
        return None
    roles, texts = plainly
    return Shape((options_digest(request, b"converted" if converted else b""), roles), texts)


# (roles, texts) -> what a template makes of such messages. Raises Unknown.
MakeResidual = Callable[[tuple[str, ...], list[str]], Residual]


class _Known:
    """The residuals of a shape, and the attempts to learn one."""

    __slots__ = ("residuals", "size_bytes", "tries")

    def __init__(self, messages: int) -> None:
        self.residuals: tuple[Residual, ...] = ()
        self.tries = 0
        self.size_bytes = _ENTRY_BYTES + 8 * messages


class ShapeCache(BoundedCache):
    """LRU over the shapes of one tokenizer's conversations."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._known: OrderedDict[tuple[bytes, tuple[str, ...]], _Known] = OrderedDict()
        self._lock = budget.lock

    def residual(self, shape: Shape) -> Residual | None:
        """Return what renders a conversation, if its shape is known."""
        for residual in self.known(shape.name):
            if residual.fits(shape.texts):
                return residual
        return None

    def known(self, name: tuple[bytes, tuple[str, ...]]) -> tuple[Residual, ...]:
        """Return the residuals of a shape, of which at most one fits a conversation."""
        known = self._known.get(name)
        found = () if known is None else known.residuals
        with self._lock:
            if found:
                self.hits += 1
                if name in self._known:
                    self._known.move_to_end(name)
            else:
                self.misses += 1
        return found

    def learn(self, shape: Shape, text: str, make: MakeResidual, *, hasty: bool) -> Residual | None:
        """Learn from a rendered conversation of this shape; return its residual. hasty: there is no
        time for a long one."""
        with self._lock:
            known = self._known.get(shape.name)
            if known is None:
                # A conversation seen once is not a shape yet.
                known = _Known(len(shape.texts))
                if self.takes(known.size_bytes):
                    self._known[shape.name] = known
                    self.budget.grow(self, known.size_bytes)
                return None
            if known.tries == _MOST_TRIES or (hasty and len(shape.texts) > _FEW_MESSAGES):
                return None
            known.tries += 1
        try:
            residual = make(shape.name[1], shape.texts)
        except Unknown:
            return None
        size_bytes = residual.size_bytes
        if not self.takes(size_bytes) or residual.filled(shape.texts) != text:
            return None
        with self._lock:
            known.residuals += (residual,)
            if self._known.get(shape.name) is known:
                known.size_bytes += size_bytes
                self.budget.grow(self, size_bytes)
        return residual

    def forget_oldest(self) -> int:
        """Drop the least recently used shape."""
        return self._known.popitem(last=False)[1].size_bytes

    def __len__(self) -> int:
        return len(self._known)

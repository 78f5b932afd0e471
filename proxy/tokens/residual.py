"""What is left of a chat template once all but the messages' texts is known: text with holes.

Invariants:
- A residual is used only where each of its guards says of the new texts what it said of those it
  was made with; then it is the template's rendering, by `proxy.tokens.partial`, and was compared
  with it once.
- Guards ask only what the template asks: the first that fails ends the use of a residual.
"""

from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple


class Unknown(Exception):
    """The rendering follows from a text in a way that is not followed here."""


class Guard(NamedTuple):
    """asks: a method of str; of the text with this number it says `holds`, given these words, or
    leaves the text as it is."""

    text: int
    asks: str
    words: tuple[str, ...]
    holds: bool


class Residual(NamedTuple):
    """parts: text, and numbers of the texts that stand in between, which are found at `holes`."""

    parts: tuple[str | int, ...]
    guards: tuple[Guard, ...]

    @property
    def size_bytes(self) -> int:
        """What a cache pays for it."""
        shown = sum([getsizeof(part) for part in self.parts])
        return shown + 200 * len(self.guards) + 200

    def fits(self, texts: Sequence[str]) -> bool:
        """Whether it is the template's rendering for messages of these texts."""
        for guard in self.guards:  # noqa: SIM110 - not a generator: this runs for each request
            if not _holds(guard, texts[guard.text]):
                return False
        return True

    def filled(self, texts: Sequence[str]) -> str:
        """The rendering, where it fits."""
        return "".join([part if isinstance(part, str) else texts[part] for part in self.parts])


def _holds(guard: Guard, text: str) -> bool:
    asks = guard.asks
    if asks == "__bool__":
        return (text != "") is guard.holds
    if asks == "__contains__":
        return (guard.words[0] in text) is guard.holds
    if asks == "__eq__":
        return (text == guard.words[0]) is guard.holds
    if asks == "startswith":
        return text.startswith(guard.words[0]) is guard.holds
    if asks == "endswith":
        return text.endswith(guard.words[0]) is guard.holds
    return bool(getattr(text, asks)(*guard.words) == text)

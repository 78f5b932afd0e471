"""Which tokenizer reads a model's prompts, and what all of a model's jobs share.

Invariants:
- An adapter is read by its base's unless it has one of its own.
- The fleet may change at any time which models are adapters.
"""

from collections.abc import Mapping

from tokenlane.tokens.caches.budgets import TokenCaches
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.tokenizer import Tokenizer


class LoadedModel:
    """What the jobs of one model share: speed is learned from them, caches filled by them."""

    __slots__ = ("caches", "speed", "tokenizer")

    def __init__(self, tokenizer: Tokenizer, speed: Speed, caches: TokenCaches) -> None:
        self.tokenizer = tokenizer
        self.speed = speed
        self.caches = caches


class ModelTokenizers:
    """The tokenizers of a worker. A model is read by its own, an adapter without one by that of its
    base. loaded: by model name."""

    def __init__(self, loaded: Mapping[str, Tokenizer]) -> None:
        self.loaded = dict(loaded)
        self._bases: Mapping[str, str] = {}

    def adopt(self, bases: Mapping[str, str]) -> None:
        """Replace which models are adapters, and of which."""
        self._bases = bases

    def own(self, model: str) -> str:
        """Return the model whose tokenizer and caches this one uses."""
        return model if model in self.loaded else self._bases.get(model, model)

    def get(self, model: str) -> Tokenizer | None:
        """Return the tokenizer of a model, if there is one."""
        return self.loaded.get(self.own(model))

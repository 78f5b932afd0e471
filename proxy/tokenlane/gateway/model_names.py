"""The operator's model names: aliases, splits and shadows. Pure.

Invariants:
- A name of the settings counts before a model of the same name, so that a name can move.
- A conversation stays with its model as long as weights stay and the model is up: the draw depends
  on the session and its first message, never on chance, load or the worker.
- The label sets of what is counted are those of the settings.
"""

import math
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from tokenlane.config.settings import ModelSettings
from tokenlane.gateway import message_scan
from tokenlane.gateway.message_scan import SYSTEM_ROLES
from tokenlane.gateway.query_builder import Field, session_of
from tokenlane.protocols.bodies import ABSENT
from tokenlane.tokens.blocks import TEXT_LIMIT_BYTES

_SHADOW_SEED = 1


class ModelNames:
    """The names in the settings. session_headers: lower case. on: whether there are any names or
    shadows."""

    def __init__(self, settings: ModelSettings, session_headers: Iterable[str] = ()) -> None:
        self.configure(settings, session_headers)

    def configure(self, settings: ModelSettings, session_headers: Iterable[str]) -> None:
        """Replace the names for new requests."""
        self.on = settings != ModelSettings()
        self._aliases = settings.aliases
        self._splits = settings.splits
        self._shadows = settings.shadows
        self._session_headers = tuple(name.lower().encode() for name in session_headers)

    def __contains__(self, name: object) -> bool:
        return name in self._aliases or name in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self.models())

    def changes(self, name: str | None) -> bool:
        """Return whether another model may be asked instead of this, or beside it."""
        return name in self or name in self._shadows

    def shadowed(self, model: str) -> bool:
        """Return whether some requests of a model are copied."""
        return model in self._shadows

    def models(self) -> dict[str, tuple[str, ...]]:
        """Return the models behind each name, the heaviest first."""
        behind = {name: self._behind(name) for name in self._splits}
        return {name: self._behind(model) for name, model in self._aliases.items()} | behind

    def _behind(self, name: str) -> tuple[str, ...]:
        weights = self._splits.get(name)
        if weights is None:
            return (name,)
        return tuple(sorted((one for one in weights if weights[one]), key=lambda m: -weights[m]))

    def usual(self, name: str) -> str:
        """Return the model of most conversations under a name; a name that is not in the settings
        is returned unchanged."""
        return self._behind(self._aliases.get(name, name))[0]

    def needs_key(self, name: str) -> bool:
        """Return whether it depends on the conversation which model a name means."""
        return self._aliases.get(name, name) in self._splits

    def model(self, name: str, key: int, ready: Container[str]) -> str:
        """Return the model that a name in the settings means. key: of the conversation, 64 bits.
        ready: models with a replica that is up; the others' share is dealt among these while there
        are any.

        Weighted rendezvous hashing: a change of weights moves no more than it has to.
        """
        name = self._aliases.get(name, name)
        weights = self._splits.get(name)
        if weights is None:
            return name
        among = [model for model, weight in weights.items() if weight > 0.0]
        among = [model for model in among if model in ready] or among
        return max(among, key=lambda model: _score(model, weights[model], key))

    def shadow(self, model: str, key: int) -> str | None:
        """Return the model that gets copies of this conversation's requests to a model, if any."""
        shadow = self._shadows.get(model)
        if shadow is None or _unit(xxh3_64_intdigest(_packed(key), _SHADOW_SEED)) >= shadow.ratio:
            return None
        return shadow.to

    def key(
        self, request: object, headers: Sequence[Field], request_id: bytes, tenant: str = ""
    ) -> int:
        """Return the hash that identifies a conversation: the session that a header names, else the
        first message that is not the system's, else nothing but the request's id."""
        session = session_of(headers, self._session_headers)
        if session:
            return xxh3_64_intdigest(_packed(session) + tenant.encode())
        said = getattr(request, "messages", getattr(request, "input", ABSENT))
        first = _first_message(said)
        if first is None:
            return xxh3_64_intdigest(request_id)
        return xxh3_64_intdigest(first, xxh3_64_intdigest(tenant.encode()))


def _first_message(raw: msgspec.Raw) -> bytes | None:
    """Return the message's JSON, up to the limit."""
    text, stop = message_scan.beginning(raw), 0
    if not text.startswith("["):
        return None
    try:
        for message, start, stop in message_scan.messages(text):
            role = message.get("role", "") if isinstance(message, dict) else None
            if not isinstance(role, str):
                return None
            if role not in SYSTEM_ROLES:
                return text[start:stop].encode()
    except (ValueError, RecursionError):
        # If this is not just a long message, the reader of the messages reports the error.
        if memoryview(raw).nbytes > TEXT_LIMIT_BYTES:
            return text[stop:].encode()
    return None


def _packed(key: int) -> bytes:
    return key.to_bytes(8, "little")


def _unit(digest: int) -> float:
    """Return a hash as a number above 0 and below 1."""
    return ((digest >> 12) + 0.5) / 2.0**52


def _score(model: str, weight: float, key: int) -> float:
    return weight / -math.log(_unit(xxh3_64_intdigest(model.encode() + _packed(key))))

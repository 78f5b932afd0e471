"""The operator's rules for request bodies: fields dropped or refused, numbers capped. Pure.

Invariants:
- A rule sees a field however it is spelled, and repeated fields as the replica does: the last one.
"""

from collections.abc import Mapping

import msgspec

from tokenlane.config.settings import RequestSettings
from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import Kind

# The names of the output limit, and those that an endpoint knows: what it ignores limits nothing.
# The first of these is the one that is set where none is given.
_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_KNOWN_OUTPUT_FIELDS = dict.fromkeys(Kind, _OUTPUT_FIELDS[:1]) | {
    Kind.CHAT: _OUTPUT_FIELDS[:2],
    Kind.RESPONSES: _OUTPUT_FIELDS[2:],
}
_COUNT_FIELDS = ("n", "best_of")
_PROMPT_FIELDS = dict.fromkeys(Kind, ("prompt", "messages")) | {Kind.RESPONSES: ("input",)}


class FieldRules:
    """The rules of the settings. `on`: whether there are any."""

    def __init__(self, settings: RequestSettings) -> None:
        self._stripped = frozenset(settings.stripped_fields)
        self._refused = frozenset(settings.refused_fields)
        self._output_limit_tokens = settings.output_limit_tokens
        self._choice_limit = settings.choice_limit_count
        self.on = settings != RequestSettings()

    def changes(
        self, fields: Mapping[str, msgspec.Raw], kind: Kind = Kind.CHAT
    ) -> dict[str, bytes | None]:
        """Return the fields to change, with their new JSON; None for one that is dropped. fields:
        of the body. Raise RequestError 400 for a field that is refused."""
        for name in fields:
            if name in self._refused:
                raise RequestError(
                    400, f"The field `{name}` is not allowed here.", code="field", param=name
                )
        made: dict[str, bytes | None] = dict.fromkeys(self._stripped.intersection(fields))
        left = fields.keys() - made.keys()
        # Some servers take less than 1 for no limit; 0 asks a completion to echo its prompt alone.
        least = 0 if kind is Kind.COMPLETION else 1
        caps = [(name, 0, self._choice_limit) for name in _COUNT_FIELDS]
        caps += [(name, least, self._output_limit_tokens) for name in _OUTPUT_FIELDS]
        for name, floor, limit in caps:
            if limit and name in left and not _within(fields[name], floor, limit):
                made[name] = b"%d" % limit
        known = _KNOWN_OUTPUT_FIELDS[kind]
        if (
            self._output_limit_tokens
            and left.isdisjoint(known)
            and not left.isdisjoint(_PROMPT_FIELDS[kind])
        ):
            # If it were left out, vLLM would generate as much as fits.
            made[known[0]] = b"%d" % self._output_limit_tokens
        return made


def _within(raw: msgspec.Raw, least: int, limit: int) -> bool:
    try:
        return least <= msgspec.json.decode(raw, type=int, strict=False) <= limit
    except msgspec.MsgspecError:
        return False

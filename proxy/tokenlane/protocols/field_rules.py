"""The operator's rules for request bodies: fields dropped or refused, numbers capped. Pure.

Invariants:
- A rule sees a field however it is spelled, and repeated fields as the replica does: the last one.
"""

from collections.abc import Mapping

import msgspec

from tokenlane.config.settings import RequestSettings
from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import Kind

# The names of the output limit: in completions and chats, in newer chats, in responses. The first
# is the one that is set where none is given.
_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
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
        caps = [(name, self._choice_limit) for name in _COUNT_FIELDS]
        caps += [(name, self._output_limit_tokens) for name in _OUTPUT_FIELDS]
        for name, limit in caps:
            if limit and name in left and not _within(fields[name], limit):
                made[name] = b"%d" % limit
        if (
            self._output_limit_tokens
            and left.isdisjoint(_OUTPUT_FIELDS)
            and not left.isdisjoint(_PROMPT_FIELDS[kind])
        ):
            # If it were left out, vLLM would generate as much as fits.
            name = "max_output_tokens" if kind is Kind.RESPONSES else "max_tokens"
            made[name] = b"%d" % self._output_limit_tokens
        return made


def _within(raw: msgspec.Raw, limit: int) -> bool:
    try:
        return msgspec.json.decode(raw, type=int, strict=False) <= limit
    except msgspec.MsgspecError:
        return False

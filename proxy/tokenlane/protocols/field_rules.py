"""What a body may not ask of a replica: fields dropped or refused, numbers capped. Pure.

Invariants:
- A rule sees a field however it is spelled, and repeated fields as the replica does: the last one.
- A body that no rule touches is left alone, byte for byte.
"""

import msgspec

from tokenlane.config.settings import RequestSettings
from tokenlane.errors import RequestError
from tokenlane.protocols import json_values
from tokenlane.protocols.bodies import Kind

_encode = msgspec.json.Encoder().encode
# Completions and chats say it so, newer chats and responses otherwise; the first is vLLM's default.
_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_COUNT_FIELDS = ("n", "best_of")
_PROMPT_FIELDS = dict.fromkeys(Kind, ("prompt", "messages")) | {Kind.RESPONSES: ("input",)}


class FieldRules:
    """Those of the settings. `on`: whether there are any."""

    def __init__(self, settings: RequestSettings) -> None:
        self._stripped = frozenset(settings.stripped_fields)
        self._refused = frozenset(settings.refused_fields)
        self._output_limit_tokens = settings.output_limit_tokens
        self._choice_limit = settings.choice_limit_count
        self.on = settings != RequestSettings()

    def apply(self, raw: bytes, kind: Kind = Kind.CHAT) -> bytes:
        """The body as it may go on; raises RequestError 400 for a field that is refused, and for
        what cannot be held against the rules."""
        if not json_values.are_few(raw):
            raise RequestError(400, "The body has too many fields.", code="fields")
        try:
            fields = json_values.fields(raw)
        except ValueError:
            raise RequestError(
                400, "The body is no JSON object, or has a name that is no text.", code="fields"
            ) from None
        for name in fields:
            if name in self._refused:
                raise RequestError(
                    400, f"The field `{name}` is not allowed here.", code="field", param=name
                )
        changed = False
        for name in self._stripped.intersection(fields):
            del fields[name]
            changed = True
        if self._choice_limit:
            changed |= _cap(fields, _COUNT_FIELDS, self._choice_limit)
        if self._output_limit_tokens:
            changed |= _cap(fields, _OUTPUT_FIELDS, self._output_limit_tokens)
            field = "max_output_tokens" if kind is Kind.RESPONSES else "max_tokens"
            if fields.keys().isdisjoint(_OUTPUT_FIELDS) and not fields.keys().isdisjoint(
                _PROMPT_FIELDS[kind]
            ):
                # Left out, it would mean all that fits.
                fields[field] = msgspec.Raw(b"%d" % self._output_limit_tokens)
                changed = True
        return _encode(fields) if changed else raw


def _cap(fields: dict[str, msgspec.Raw], names: tuple[str, ...], limit: int) -> bool:
    """Lowers what is above the limit, or no number at all; whether anything was."""
    changed = False
    for name in names:
        if name in fields and not _within(fields[name], limit):
            fields[name] = msgspec.Raw(b"%d" % limit)
            changed = True
    return changed


def _within(raw: msgspec.Raw, limit: int) -> bool:
    try:
        return msgspec.json.decode(raw, type=int, strict=False) <= limit
    except msgspec.MsgspecError:
        return False

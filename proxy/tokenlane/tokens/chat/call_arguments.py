"""A call's arguments, taken apart: which keys, of what kinds; and the text of each value.

Invariants:
- Arguments are what `tojson` wrote of an object. What has the same structure differs in the texts
  of its values alone.
"""

import json
import math
from typing import Any, Final

from tokenlane.tokens.chat.template_json import to_json

# Kinds of values that have a text: as it stands, of a string; as JSON, of the others.
STRING: Final = "s"
INTEGER: Final = "i"
FLOAT: Final = "f"
OBJECT: Final = "o"
LIST: Final = "l"
_KINDS: Final = {str: STRING, int: INTEGER, float: FLOAT, dict: OBJECT, list: LIST}

# A structure is kept with what was learned.
_MOST_VALUES: Final = 24
_MOST_CHARS: Final = 1_000

# A key, and the kind of its value; or that value, where it is true, false or null.
Structure = list[tuple[str, Any]]

# The last ones taken apart: a template walks through them value by value.
_last: tuple[str, dict[str, Any]] = ("{}", {})


def structure(arguments: str) -> str:
    """Return the structure, as JSON; "" of what is not taken apart."""
    values = _values(arguments)
    if len(values) > _MOST_VALUES or sum(map(len, values)) > _MOST_CHARS:
        return ""
    if not all(math.isfinite(one) for one in values.values() if type(one) is float):
        return ""
    return to_json([(key, _KINDS.get(type(one), one)) for key, one in values.items()])


def value_text(arguments: str, place: int) -> str:
    """Return the text of the value at this place; "" of other arguments, that have fewer."""
    values = list(_values(arguments).values())
    value = values[place] if place < len(values) else ""
    return value if type(value) is str else to_json(value)


def _values(arguments: str) -> dict[str, Any]:
    global _last  # noqa: PLW0603 - threads may take the place of each other's, which costs time only
    last = _last
    if last[0] is not arguments:
        last = _last = (arguments, json.loads(arguments))
    return last[1]

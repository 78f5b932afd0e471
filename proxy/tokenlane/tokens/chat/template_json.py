"""`tojson` as chat templates expect it: plain JSON, where Jinja's own filter escapes HTML."""

import json
from typing import Any, Final

# As below by default. `json.dumps` makes one for each call, which takes longer than most objects.
_plain: Final = json.JSONEncoder(ensure_ascii=False).encode


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON, as transformers writes it."""
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return _plain(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )

"""`/stalls` as a page.

Invariants:
- The page needs nothing but itself: no script, no file from elsewhere. What stands in it is
  escaped: request ids are the clients' words.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenlane.telemetry.stalls.lateness import QUANTILES

if TYPE_CHECKING:
    from jinja2 import Template


def wants_page(accept: str, asked: str | None) -> bool:
    """Whether to answer with the page. accept: the header. asked: `format` of the query."""
    if asked is not None:
        return asked == "html"
    return "text/html" in accept and "application/json" not in accept


def page(view: dict[str, Any]) -> str:
    """Return `view` as one HTML page."""
    causes = Counter(stall["cause"] for stall in view["stalls"])
    return _template().render(**view, causes=causes.most_common(), quantiles=tuple(QUANTILES))


@cache
def _template() -> "Template":
    from jinja2 import Environment  # noqa: PLC0415 - most gateways are never asked for the page

    file = Path(__file__).parent / "assets" / "stalls.html"
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(file.read_text(encoding="utf-8"))

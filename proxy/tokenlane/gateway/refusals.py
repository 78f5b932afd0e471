"""Answers to requests that no replica answers, in OpenAI's shape.

Invariants:
- Each says by its status and code who is at fault, and by `Retry-After` and `x-should-retry`
  whether trying again can help.
"""

from collections import Counter
from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice

from tokenlane.errors import RequestError
from tokenlane.routing.candidates import LEFT_OUT_WORDS, OF_OTHERS, Eligible, Nobody
from tokenlane.routing.response_homes import NAME_LIMIT_CHARS
from tokenlane.routing.retry import Step

# Comparing names blocks the loop, 40 us for two that are much alike.
_LIKE_LIMIT_COUNT = 16
_LIKE_LIMIT_CHARS = 40
_SHOWN_LIMIT_CHARS = 80
_NO_RETRY = (b"x-should-retry", b"false")


def unknown_model(name: str = "", served: Collection[str] = ()) -> RequestError:
    """Return the 404 for a model that no replica serves. served: the names that exist."""
    shown = 0 < len(name) <= _SHOWN_LIMIT_CHARS and name.isprintable()
    known = {_alike(one): one for one in islice(served, _LIKE_LIMIT_COUNT)} if shown else {}
    near = get_close_matches(_alike(name), known, 1)
    what = f'The model "{name}" does not exist' if shown else "The model does not exist"
    meant = f'; did you mean "{known[near[0]]}"?' if near else "."
    listed = ", ".join(served)
    return RequestError(
        404,
        what + meant + (f" Served: {listed}." if listed else ""),
        kind="NotFoundError",
        code="model_not_found",
        param="model",
    )


def _alike(name: str) -> str:
    return name[:_LIKE_LIMIT_CHARS].casefold()


def nobody(among: Eligible) -> RequestError:
    """Return the 404 or 503 for a request that no replica can take."""
    if among.nobody is Nobody.UNKNOWN_MODEL:
        return unknown_model()
    counts = Counter(left for left in among.left_out.values() if left not in OF_OTHERS)
    why = "; ".join(f"{count} {LEFT_OUT_WORDS[left]}" for left, count in counts.items())
    return RequestError(
        503,
        "No replica can take this request now" + (f" ({why})." if why else "."),
        kind="server_error",
        code=f"replicas_{(among.nobody or Nobody.DOWN).value}",
        retry_after_s=1,
    )


def unknown_response(name: str) -> RequestError:
    """Return vLLM's error for an unknown response."""
    shown = name[:NAME_LIMIT_CHARS]
    return RequestError(
        404, f"Response with id '{shown}' not found.", param="response_id", code=404
    )


def upstream(step: Step) -> RequestError:
    """Return the 502, 503 or 504 that ends a request whose attempts failed."""
    messages = {
        502: "The replica failed before it answered.",
        503: "No replica accepted the request.",
        504: "The replica did not answer in time.",
    }
    codes = {502: "upstream_failed", 503: "upstream_unreachable", 504: "upstream_timeout"}
    return RequestError(
        step.status,
        messages[step.status],
        kind="server_error",
        code=codes[step.status],
        retry_after_s=step.retry_after_s,
        headers=(_NO_RETRY,) if step.should_retry is False else (),
    )

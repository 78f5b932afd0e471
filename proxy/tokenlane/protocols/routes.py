"""What is served under which path: one closed table, read by dispatch and by metric labels.

Invariants:
- A path that is not in the table is 404, in OpenAI's shape; nothing else reaches a replica.
- The upstream path is the request's own; no part of a request chooses an upstream.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import Kind
from tokenlane.protocols.dialects import Dialect


class Action(Enum):
    """Which part of the gateway answers."""

    GENERATE = "generate"  # a replica, chosen by the prompt's tokens
    FORWARD = "forward"  # a replica, chosen by load
    KEPT = "kept"  # the replica that keeps the response which the path names
    MODELS = "models"
    COUNT = "count"  # here, where the tokenizer is known; else a replica
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    HEALTH = "health"
    NOTHING = "nothing"  # not served


_BY_TOKENIZER: Final = (Action.TOKENIZE, Action.DETOKENIZE, Action.COUNT)
# Found once: a name in a module that is not compiled is dear to look up for each request.
_UNREAD: Final = Kind.OTHER
_NAMED: Final = Kind.RESPONSES


@dataclass(frozen=True, slots=True)
class Route:
    """path: also the metric label, with `{id}` for any name. kind: how the body is read. dialect:
    of the answers. ends_marked: its streams have an event that ends them (see
    `tokenlane.protocols.dialects`)."""

    path: str
    action: Action
    methods: tuple[str, ...] = ("POST",)
    kind: Kind = Kind.OTHER
    dialect: Dialect = Dialect.CHAT

    @property
    def tokens(self) -> bool:
        """Whether a tokenizer can answer it."""
        return self.action in _BY_TOKENIZER

    @property
    def ends_marked(self) -> bool:
        return self.kind is not _UNREAD

    @property
    def names_answers(self) -> bool:
        """Whether its answers have names, under which a replica may keep them."""
        return self.kind is _NAMED

    @property
    def public(self) -> bool:
        """Whether it needs no key."""
        return self.action is Action.HEALTH


_GET: Final = ("GET", "HEAD")
# vLLM's other POST paths that take a JSON body with a `model`.
FORWARDED: Final = (
    "/v1/embeddings /v1/rerank /v2/rerank /rerank /v1/score /score /pooling /classify".split()
)
ROUTES: Final[dict[str, Route]] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", Action.GENERATE, kind=Kind.CHAT),
        Route("/v1/completions", Action.GENERATE, kind=Kind.COMPLETION),
        Route("/v1/messages", Action.GENERATE, kind=Kind.MESSAGES, dialect=Dialect.MESSAGES),
        Route("/v1/messages/count_tokens", Action.COUNT, dialect=Dialect.MESSAGES),
        Route("/v1/responses", Action.GENERATE, kind=Kind.RESPONSES, dialect=Dialect.RESPONSES),
        Route("/v1/models", Action.MODELS, _GET),
        Route("/v1/models/{id}", Action.MODELS, _GET),
        Route("/tokenize", Action.TOKENIZE),
        Route("/detokenize", Action.DETOKENIZE),
        Route("/health", Action.HEALTH, _GET),
        Route("/v1/responses/{id}", Action.KEPT, ("GET",), dialect=Dialect.RESPONSES),
        Route("/v1/responses/{id}/cancel", Action.KEPT, dialect=Dialect.RESPONSES),
        *(Route(path, Action.FORWARD) for path in FORWARDED),
    )
}


HEALTH_PATHS: Final = frozenset(
    path for path, route in ROUTES.items() if route.action is Action.HEALTH
)

# The route of every other path.
UNSERVED: Final = Route("other", Action.NOTHING, methods=())

# Names as vLLM makes them, and spellings that a proxy on the way would take for the same.
_KEPT: Final = re.compile(r"(/v1/responses/)([A-Za-z0-9_-][A-Za-z0-9_.:-]{0,255})(/cancel)?")


# One or more segments, none of them `..`; other bytes are percent-encoded.
_PART: Final = r"(?!\.\.?(?:/|$))[A-Za-z0-9_.:@+~,=%-]+"
_MODEL: Final = re.compile(rf"/v1/models/({_PART}(?:/{_PART})*)")


# Admin paths that people look for on the data port.
_ADMIN: Final = frozenset(
    ("/", "/metrics", "/livez", "/readyz", "/status.json", "/replicas", "/stalls")
)


def _meant(path: str) -> str:
    """Return the path that was probably meant, out of this table, never out of the request."""
    if path in _ADMIN:
        return "; it is on the admin port."
    bare = path.rstrip("/")
    for near in (f"/v1{bare}", bare, bare.removeprefix("/v1"), f"{bare}s", f"/v1{bare}s"):
        if near in ROUTES:
            return f"; did you mean {near}?"
    return "."


def route_of(path: str) -> Route:
    """Return the route of a path; UNSERVED where nothing is served."""
    route = ROUTES.get(path, UNSERVED)
    if route is UNSERVED and (match := _KEPT.fullmatch(path)) is not None:
        return ROUTES[f"{match[1]}{{id}}{match[3] or ''}"]
    if route is UNSERVED and model_name(path):
        return ROUTES["/v1/models/{id}"]
    return route


def model_name(path: str) -> str:
    """Return the name of the model in a path of `/v1/models/{id}`, empty for other paths. Its
    slashes may be written as they are."""
    match = _MODEL.fullmatch(path)
    return unquote(match[1]) if match is not None else ""


def kept_name(path: str) -> str:
    """Return the response that a path of a KEPT route names."""
    match = _KEPT.fullmatch(path)
    return match[2] if match is not None else ""


def allow(route: Route, method: str, path: str) -> None:
    """Raise RequestError 404 where nothing is served, 405 where not by this method."""
    if route is UNSERVED:
        raise RequestError(404, f"This path is not served here{_meant(path)}", code="not_found")
    if method not in route.methods:
        raise RequestError(
            405,
            f"This method is not allowed here, only {' or '.join(route.methods)}.",
            code="method_not_allowed",
            headers=((b"allow", ", ".join(route.methods).encode()),),
        )

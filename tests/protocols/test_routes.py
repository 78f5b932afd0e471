"""Routes: a closed table, and what is not in it is refused in one way."""

import re

import pytest

from tests.paths import ROOT
from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import Kind
from tokenlane.protocols.dialects import dialect_of
from tokenlane.protocols.routes import (
    FORWARDED,
    ROUTES,
    Action,
    Route,
    allow,
    model_name,
    route_of,
)


def find(method: str, path: str) -> Route:
    """Return the route of a request, as the gateway takes it."""
    route = route_of(path)
    allow(route, method, path)
    return route


@pytest.mark.parametrize(
    ("method", "path", "action", "kind"),
    [
        ("POST", "/v1/chat/completions", Action.GENERATE, Kind.CHAT),
        ("POST", "/v1/completions", Action.GENERATE, Kind.COMPLETION),
        ("POST", "/v1/embeddings", Action.FORWARD, Kind.OTHER),
        ("POST", "/v1/messages", Action.GENERATE, Kind.MESSAGES),
        ("POST", "/v1/messages/count_tokens", Action.COUNT, Kind.OTHER),
        ("POST", "/v1/responses", Action.GENERATE, Kind.RESPONSES),
        ("GET", "/v1/models", Action.MODELS, Kind.OTHER),
        ("HEAD", "/v1/models", Action.MODELS, Kind.OTHER),
        ("POST", "/tokenize", Action.TOKENIZE, Kind.OTHER),
        ("POST", "/detokenize", Action.DETOKENIZE, Kind.OTHER),
        ("GET", "/health", Action.HEALTH, Kind.OTHER),
    ],
)
def test_served(method: str, path: str, action: Action, kind: Kind) -> None:
    route = find(method, path)
    assert (route.path, route.action, route.kind) == (path, action, kind)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models/demo", "demo"),
        ("/v1/models/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/v1/models/%2Fmodels%2Fq.1:a@b", "/models/q.1:a@b"),
        ("/v1/models/..%2Fhealth", "../health"),
        ("/v1/models", ""),
        ("/v1/models/", ""),
        ("/v1/models//a", ""),
        ("/v1/models/a/", ""),
        ("/v1/models/a/../b", ""),
        ("/v1/models/./a", ""),
        ("/v1/models/a;b", ""),
    ],
)
def test_the_model_that_a_path_names(path: str, name: str) -> None:
    assert model_name(path) == name
    assert (route_of(path).path == "/v1/models/{id}") == bool(name)


def test_a_route_speaks_the_dialect_of_its_path() -> None:
    """Errors are told by the path, before there is a route; answers by the route."""
    assert [route.dialect for route in ROUTES.values()] == [dialect_of(path) for path in ROUTES]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/metrics", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "//v1/chat/completions", 404, None),
        ("POST", "/V1/chat/completions", 404, None),
        ("POST", "/v1/models/../completions", 404, None),
        ("POST", "/v1/load_lora_adapter", 404, None),
        ("GET", "/v1/chat/completions", 405, b"POST"),
        ("OPTIONS", "/v1/models", 405, b"GET, HEAD"),
        ("DELETE", "/health", 405, b"GET, HEAD"),
    ],
)
def test_refused(method: str, path: str, status: int, allow: bytes | None) -> None:
    with pytest.raises(RequestError) as refused:
        find(method, path)
    assert refused.value.status == status
    assert refused.value.headers == (((b"allow", allow),) if allow else ())
    assert path == "/" or path not in refused.value.message


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/chat/completions", "not served here; did you mean /v1/chat/completions?"),
        ("POST", "/v1/responses/", "not served here; did you mean /v1/responses?"),
        ("POST", "/v1/chat/completion", "not served here; did you mean /v1/chat/completions?"),
        ("POST", "/embedding/", "not served here; did you mean /v1/embeddings?"),
        ("POST", "/v1/v1/responses", "not served here; did you mean /v1/responses?"),
        ("POST", "/v1/tokenize", "not served here; did you mean /tokenize?"),
        ("GET", "/metrics", "not served here; it is on the admin port."),
        ("GET", "/v2/nothing", "not served here."),
        ("GET", "/v1/chat/completions", "not allowed here, only POST."),
        ("POST", "/v1/models", "not allowed here, only GET or HEAD."),
    ],
)
def test_the_next_step(method: str, path: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        find(method, path)
    assert refused.value.message.endswith(said)


def test_paths_are_good_labels() -> None:
    assert len(ROUTES) < 32
    for path, route in ROUTES.items():
        assert path == route.path
        assert re.fullmatch(r"[a-z0-9/_]+(\{id\}(/[a-z]+)?)?", path)


def test_changing_paths_are_not_passed_through() -> None:
    """Whatever else vLLM serves (adapters, cache resets, sleep) is its operator's business."""
    for word in ("lora", "reset", "sleep", "wake", "collective", "update", "server_info"):
        assert not any(word in path for path in FORWARDED)


def test_the_readme_names_no_other_path() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"/v1/[a-z/]+[a-z]", text))
    assert named <= set(ROUTES)

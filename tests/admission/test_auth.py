"""Keys: who may in, told apart before a byte of a body is read; what replicas see of them."""

import ast
import asyncio
import inspect
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from tests.raw import CHAT, MESSAGES, Upstream, answering, chat, get, json_bytes, ok, post
from tests.support import demo_tokenizer, gateway
from tokenlane.admission import auth
from tokenlane.admission.auth import Authenticator, tenant_salt
from tokenlane.config.keyring import client_keys, replica_key
from tokenlane.config.secret import Secret
from tokenlane.config.settings import AuthSettings, Key, Settings, Tenant, UpstreamSettings
from tokenlane.errors import ConfigError, RequestError
from tokenlane.protocols.bodies import Kind
from tokenlane.protocols.inspection import inspect as read_body
from tokenlane.protocols.routes import ROUTES, UNSERVED, Route
from tokenlane.telemetry.metrics import families

NOW_S = 1_700_000_000.0
ALICE, BOB, OLD = b"sk-alice-Xq7canary", b"sk-bob-Xq7canary", b"sk-old-Xq7canary"


def key(plain: bytes, tenant: str, *, ends_in_s: float | None = None) -> Key:
    """As an operator writes it. ends_in_s: seconds from NOW_S."""
    ends = None
    if ends_in_s is not None:
        ends = datetime.fromtimestamp(NOW_S, UTC) + timedelta(seconds=ends_in_s)
    return Key(digest=sha256(plain).hexdigest(), tenant=tenant, expires=ends)


KEYS = (key(ALICE, "alice"), key(BOB, "bob"), key(OLD, "alice", ends_in_s=0))
AUTH = AuthSettings(keys=KEYS)
POSTED = [path for path, route in ROUTES.items() if "POST" in route.methods]


def authenticator(reasons: list[str] | None = None) -> Authenticator:
    return Authenticator(KEYS, (reasons if reasons is not None else []).append)


def bearer(plain: bytes) -> str:
    return f"authorization: Bearer {plain.decode()}\r\n"


REFUSED = {
    "none": ([], "missing"),
    "empty": ([(b"authorization", b"")], "malformed"),
    "basic": ([(b"authorization", b"Basic " + ALICE)], "malformed"),
    "bare": ([(b"authorization", ALICE)], "malformed"),
    "no space": ([(b"authorization", b"Bearer" + ALICE)], "malformed"),
    "twice": ([(b"authorization", b"Bearer " + ALICE)] * 2, "malformed"),
    "two kinds": ([(b"authorization", b"Bearer " + ALICE), (b"x-api-key", ALICE)], "malformed"),
    "wrong": ([(b"authorization", b"Bearer sk-alice")], "unknown"),
    "longer": ([(b"authorization", b"Bearer " + ALICE + b"x")], "unknown"),
    "huge": ([(b"authorization", b"Bearer " + b"x" * 1_000_000)], "unknown"),
    "latin": ([(b"authorization", b"Bearer \xe9\xff")], "unknown"),
    "its digest": ([(b"authorization", b"Bearer " + KEYS[0].digest.encode())], "unknown"),
    "expired": ([(b"x-api-key", OLD)], "expired"),
    "cookie": ([(b"cookie", b"authorization=Bearer " + ALICE)], "missing"),
}


@pytest.mark.row("S2")
@pytest.mark.parametrize(("headers", "reason"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("route", [*ROUTES.values(), UNSERVED], ids=lambda route: route.path)
def test_without_a_good_key(route: Route, headers: list[tuple[bytes, bytes]], reason: str) -> None:
    reasons: list[str] = []
    if route.public:
        assert authenticator(reasons).tenant(route, headers, NOW_S) == ""
        assert not reasons
        return
    with pytest.raises(RequestError) as refused:
        authenticator(reasons).tenant(route, headers, NOW_S)
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert "canary" not in refused.value.message
    assert reasons == [reason]


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_with_one(scheme: bytes) -> None:
    route = ROUTES[CHAT]
    assert authenticator().tenant(route, [(b"authorization", scheme + ALICE)], NOW_S) == "alice"
    assert authenticator().tenant(route, [(b"x-api-key", BOB)], NOW_S) == "bob"
    assert authenticator().tenant(route, [(b"x-api-key", OLD)], NOW_S - 1) == "alice"


def test_only_health_is_public() -> None:
    assert [path for path, route in ROUTES.items() if route.public] == ["/health"]


@pytest.mark.row("S3")
def test_no_comparison_touches_a_key() -> None:
    """What is compared is a header's scheme and two times; keys are hashed and looked up."""
    compared = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(auth)))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops)
    }
    assert compared == {
        "name == b'authorization'",
        "value[:7].lower() != _SCHEME",
        "reason == 'missing'",
    }


@pytest.mark.row("S2")
@pytest.mark.parametrize("path", [*POSTED, "/v1//chat/completions", "/v1/%63hat/completions", "/x"])
async def test_refused_before_the_body(path: str) -> None:
    """The body never comes, and the answer does; a replica hears nothing of it."""
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=Settings(auth=AUTH)) as bench:
            for headers in ("", bearer(OLD), "authorization: Bearer x\r\n"):
                client = await bench.client()
                head = f"POST {path} HTTP/1.1\r\nhost: g\r\n{headers}content-length: 9\r\n\r\n"
                await client.send(head.encode())
                answer = await client.answer()
                assert answer.status == 401
                if path.startswith(MESSAGES):
                    assert answer.refusal["type"] == "authentication_error"
                else:
                    assert answer.error["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert b"canary" not in answer.body
                client.close()
            assert bench.metric(families.UNAUTHORIZED, "missing") == 1
            assert bench.metric(families.UNAUTHORIZED, "expired") == 1
            assert bench.metric(families.TENANT_REQUESTS, "other", "client_error") == 3
    assert not upstream.asked


@pytest.mark.row("S2")
async def test_methods_and_targets_get_around_nothing() -> None:
    """Another method, another spelling of the target: 401 as well, and 404 or 405 with a key."""
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=Settings(auth=AUTH)) as bench:
            for target, status in (
                (CHAT, 405), ("/v1/models", 200), ("/v1/models/", 404),
                ("/v1/models/..;/health", 404), ("/health/../v1/models", 404), ("/metrics", 404),
                ("http://g/v1/models", 200),
            ):  # fmt: skip
                extra = "x-http-method-override: POST\r\nx-original-url: /health\r\n"
                assert (await bench.ask(get(target, extra), "GET")).status == 401
                assert (await bench.ask(get(target, extra + bearer(BOB)), "GET")).status == status
            for method in ("OPTIONS", "DELETE", "PUT"):
                request = get("/v1/models").replace(b"GET", method.encode(), 1)
                assert (await bench.ask(request, method)).status == 401
            assert (await bench.ask(get("/health"), "GET")).status == 200
    assert not upstream.asked


async def test_without_keys_all_may_come_in() -> None:
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        assert (await bench.ask(post(CHAT, chat(), bearer(b"whatever")))).status == 200
        assert upstream.asked[0].values(b"authorization") == [b"Bearer whatever"]
        assert bench.metric(families.TENANT_REQUESTS, "other", "ok") == 0


@pytest.mark.row("S5")
@pytest.mark.parametrize("clients", [True, False])
@pytest.mark.parametrize("replicas", [True, False])
async def test_keys_end_at_the_gateway(clients: bool, replicas: bool) -> None:
    settings = Settings(auth=AUTH) if clients else Settings()
    own = Secret(b"sk-replica") if replicas else None
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings, replica_key=own) as bench:
            answer = await bench.ask(post(CHAT, chat(), bearer(ALICE)))
            assert "sk-replica" not in str(answer)
    sent = [b"Bearer sk-replica"] if replicas else [] if clients else [b"Bearer " + ALICE]
    assert upstream.asked[0].values(b"authorization") == sent
    assert bool(upstream.asked[0].values(b"x-api-key")) is False


@pytest.mark.row("S8")
async def test_tenants_share_no_prefix() -> None:
    """The same prompt by another tenant is cold, here and, by its cache_salt, in the replica."""
    async with Upstream(answering(ok())) as upstream:
        settings = Settings(auth=AUTH)
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            cached = []
            for plain in (ALICE, ALICE, BOB, BOB):
                answer = await bench.ask(post(CHAT, chat("words " * 100), bearer(plain)))
                cached.append(int(answer.headers["x-tokenlane-cached-tokens"]))
            assert bench.metric(families.TENANT_REQUESTS, "bob", "ok") == 2
            assert bench.metric(families.TENANT_TOKENS, "bob", "prompt") > 100
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0
    salts = [json.loads(asked.body)["cache_salt"] for asked in upstream.asked]
    assert salts == [tenant_salt("alice", None)] * 2 + [tenant_salt("bob", None)] * 2
    assert salts[0] != salts[2]


@pytest.mark.row("S8")
@given(st.sampled_from(["a", "b"]), st.none() | st.text(), st.none() | st.text())
def test_no_tenant_has_the_salt_of_another(tenant: str, one: str | None, other: str | None) -> None:
    mine, theirs = tenant_salt(tenant, one), tenant_salt(tenant + "x", other)
    assert mine != theirs
    # Nor by sending it.
    assert tenant_salt(tenant + "x", mine) != mine


_json = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=2)
)


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As a replica reads repeated keys that takes the first of them."""
    return dict(reversed(pairs))


async def test_the_salt_given_by_a_client_is_made_its_tenants() -> None:
    """However it is spelled: `null`, escapes and repetition do not lead around it."""
    spelled = (
        b'"cache_salt":"s"',
        b'"cache_salt":null',
        b'"c\\u0061che_salt":"s"',
        b'"n":1',
        b'"cache_salt":"r","cache_salt":"s"',
        b'"cache_salt":"r","c\\u0061che_salt":null',
        b'"cache_salt":"s","x":"%b"' % (b"x" * 200_000),
    )
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=Settings(auth=AUTH)) as bench:
            for one in spelled:
                body = b'{"model":"demo","messages":[],' + one + b"}"
                assert (await bench.ask(post(CHAT, body, bearer(ALICE)))).status == 200
            body = json_bytes({"model": "demo", "input": "x"})
            await bench.ask(post("/v1/responses", body, bearer(ALICE)))
            message = json_bytes({"model": "demo", "messages": [], "max_tokens": 1})
            await bench.ask(post(MESSAGES, message, f"x-api-key: {ALICE.decode()}\r\n"))
            await bench.ask(post("/v1/embeddings", body, bearer(ALICE)))
    given_s, none = tenant_salt("alice", "s"), tenant_salt("alice", None)
    for hook in (dict, _first_wins):  # whichever of two keys a replica takes
        bodies = [json.loads(asked.body, object_pairs_hook=hook) for asked in upstream.asked]
        salts = [body.get("cache_salt") for body in bodies]
        assert salts[:7] == [given_s, none, given_s, none, given_s, none, given_s]
        assert salts[7:] == [none, none, None]
    replicas_view = read_body(Kind.CHAT, upstream.asked[2].body)
    assert getattr(replicas_view, "cache_salt", None) == given_s


@pytest.mark.row("S4")
def test_a_secret_is_not_shown() -> None:
    secret = Secret(b"sk-canary")
    assert (repr(secret), repr([secret])) == ("***", "[***]")
    for show in (str, format, "{}".format, "%s".__mod__, json.dumps):
        with pytest.raises(TypeError) as refused:
            show(secret)
        assert "canary" not in str(refused.value)
    assert secret.reveal() == b"sk-canary"
    assert not hasattr(secret, "__dict__")


@pytest.mark.row("S4")
def test_where_the_replicas_key_comes_from(tmp_path: Path) -> None:
    none: Mapping[str, str] = {}
    assert replica_key(UpstreamSettings(), none) is None
    found = replica_key(UpstreamSettings(), {"TOKENLANE_UPSTREAM_API_KEY": "sk-1"})
    assert found is not None
    assert found.reveal() == b"sk-1"
    file = tmp_path / "key"
    file.write_text("sk-2\n")
    found = replica_key(UpstreamSettings(api_key_file=str(file)), none)
    assert found is not None
    assert found.reveal() == b"sk-2"
    for wrong in ("", "two words", "a\nb", "clé"):
        file.write_text(wrong)
        with pytest.raises(ConfigError) as refused:
            replica_key(UpstreamSettings(api_key_file=str(file)), none)
        assert not wrong or wrong not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        replica_key(UpstreamSettings(api_key_file=str(tmp_path / "none")), none)


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    settings = AuthSettings(keys=KEYS[:1], keys_file=str(file))
    digest = sha256(BOB).hexdigest()
    file.write_text(f"- {{digest: {digest}, tenant: bob, expires: 2027-01-31T00:00:00Z}}\n")
    keys = client_keys(settings)
    assert keys is not None
    assert [one.tenant for one in keys] == ["alice", "bob"]
    assert keys[1].expires == datetime(2027, 1, 31, tzinfo=UTC)
    file.write_text("")
    assert client_keys(settings) == KEYS[:1]
    # An empty list of keys is no open door.
    assert client_keys(AuthSettings(keys_file=str(file))) == ()
    assert client_keys(AuthSettings()) is None
    # A file of keys may be longer than settings are.
    entry = f"{{digest: {digest}, tenant: bob, expires: 2027-01-31T00:00:00Z}}"
    file.write_text(f"- &a {entry}\n" + "- *a\n" * 15_000)
    with pytest.raises(ConfigError, match="a key is given twice"):
        client_keys(settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "# ours\n- tenant: a\n  digest: sk-canary\n",
            r"keys.yaml:3: keys\[0\].digest: must be 64 hexadecimal digits",
        ),
        ("- {digest: 7353, tenant: a}", "must be 64 hexadecimal digits in .* of a key$"),
        ("- {}\n- sk-canary", r"keys.yaml:1: keys\[0\]: needs `digest` \(and 1 more"),
        ("- sk-canary", r"keys.yaml:1: keys\[0\]: must be a mapping$"),
        ("digest: canary", "keys.yaml:1: keys: must be a list$"),
        ("- {digest: " + "a" * 64 + "}", r"keys.yaml:1: keys\[0\]: needs `tenant`$"),
        (
            "- {digest: " + "a" * 64 + ",\n   tenant: a, exprires: 1}",
            r"keys.yaml:2: keys\[0\].exprires: .*; did you mean keys\[0\].expires\?$",
        ),
        (
            "- sk-canary: team-a",
            r"keys.yaml:1: keys\[0\]: has an unknown field; known here: digest",
        ),
        ('- {"sk`\\n` - at `canary": a}', r"keys.yaml:1: keys\[0\]: has an unknown field"),
        (
            "- {digest: " + "a" * 64 + ", tenant: 'a b'}",
            r"keys.yaml:1: keys\[0\].tenant: must be a name",
        ),
        ("{sk-canary: [}", "is not YAML"),
        ("- {tenant: canary, expires: 2027-02-30T00:00:00Z}", "keys.yaml: holds an invalid value"),
        ("[" * 900 + "canary", "keys.yaml: holds an invalid value"),
        (
            "- canary: 1\n  tenant: a\n  canary: 2",
            "keys.yaml:3: gives a field twice, first in line 1",
        ),
        (f"- {{digest: {KEYS[0].digest}, tenant: b}}", "given twice"),
    ],
)
def test_a_wrong_file_of_keys(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        client_keys(AuthSettings(keys=KEYS[:1], keys_file=str(file)))
    assert "canary" not in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("a" * 64),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["digest", "tenant", "expires", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@hypothesis(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, max_size=2) | VALUES)
def test_whatever_a_file_of_keys_holds(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps(value))
    try:
        assert client_keys(AuthSettings(keys_file=str(file))) is not None
    except ConfigError as refused:
        assert str(refused).startswith((str(file), "auth.keys: a key is given twice"))  # noqa: PT017 - what is drawn may be right


def test_tenants_without_a_key_are_a_mistake() -> None:
    for settings in (
        AuthSettings(tenants={"alice": Tenant()}),
        AuthSettings(keys=KEYS, tenants={"carol": Tenant()}),
    ):
        with pytest.raises(ConfigError, match="auth"):
            client_keys(settings)


async def test_many_tenants_at_once_keep_apart() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=Settings(auth=AUTH)) as bench:
            requests = [post(CHAT, chat(), bearer(plain)) for plain in (ALICE, BOB, b"no")] * 10
            answers = await asyncio.gather(*map(bench.ask, requests))
            assert [answer.status for answer in answers] == [200, 200, 401] * 10
            assert bench.metric(families.TENANT_REQUESTS, "alice", "ok") == 10

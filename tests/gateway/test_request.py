"""The life of a request against replicas made of raw bytes: what reaches them, what comes back."""

import gc
import json
from typing import Any

import pytest

from tests.raw import (
    CHAT,
    EVENTS,
    Peer,
    Upstream,
    answering,
    chat,
    chunk,
    get,
    json_bytes,
    ok,
    post,
    stream,
    until,
)
from tests.support import PROVEN, demo_tokenizer, gateway
from tokenlane.config.settings import (
    ModelSettings,
    Price,
    ServerSettings,
    Settings,
    TokenSettings,
)
from tokenlane.fleet_state import CacheChange, FleetState, ReplicaState, Standing
from tokenlane.protocols.routes import FORWARDED
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.tokenizer import Tokenizer

CANARY = "Xq7canary"
AS_TEXT = Settings(tokens=TokenSettings(forward_tokens="off"))


async def test_a_whole_answer_passes() -> None:
    answer_bytes = ok(b'{"x":1}', "x-mine: yes\r\nx-request-id: theirs\r\nserver: uvicorn\r\n")
    async with Upstream(answering(answer_bytes)) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(), "x-request-id: mine\r\n"))
        assert bench.outcomes() == {("200", "ok"): 1}
    assert (answer.status, answer.body, answer.whole) == (200, b'{"x":1}', True)
    assert (answer.headers["x-mine"], answer.headers["server"]) == ("yes", "uvicorn")
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-tokenlane-replica"] == upstream.url.removeprefix("http://")
    assert answer.headers["x-tokenlane-route"] == "affinity no-tokenizer"
    assert "x-tokenlane-cached-tokens" not in answer.headers
    assert upstream.asked[0].values(b"x-request-id") == [b"mine"]


async def test_a_stream_passes_byte_for_byte() -> None:
    async with Upstream(answering(stream())) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(2):
            answer = await client.ask(post(CHAT, chat(stream=True)))
            assert answer.whole
            assert answer.body == b"".join(EVENTS)
        assert len(upstream.peers) == 1
        assert bench.metric(families.TTFT, "demo") == 2


async def test_an_answer_that_its_connection_ends_is_framed_anew() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(head + b"".join(EVENTS))
        peer.close()

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert (answer.whole, answer.body) == (True, b"".join(EVENTS))
        assert "connection" not in answer.headers


@pytest.mark.row("P3")
async def test_what_reaches_the_replica() -> None:
    headers = (
        "Authorization: Bearer key\r\nX-Session-Affinity: s1\r\nCookie: a\r\nCookie: b\r\n"
        "Connection: keep-alive, X-Mine, Authorization\r\nX-Mine: 1\r\n"
        "Keep-Alive: 5\r\nTE: trailers\r\n"
        "Upgrade: websocket\r\nProxy-Authorization: p\r\nTrailer: x\r\nX_Under: 1\r\n"
        "X-Tokenlane-Replica: forged\r\nAccept-Encoding: gzip, br\r\nUser-Agent: ua\r\n"
    )
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        await bench.ask(post(CHAT + "?a=b&c", chat(), headers))
    [asked] = upstream.asked
    assert asked.line == b"POST /v1/chat/completions?a=b&c HTTP/1.1"
    assert asked.values(b"x-request-id")[0]
    named = [field for field in asked.headers if field[0] != b"x-request-id"]
    assert named == [
        (b"host", upstream.url[7:].encode()),
        (b"authorization", b"Bearer key"),
        (b"x-session-affinity", b"s1"),
        (b"cookie", b"a"),
        (b"cookie", b"b"),
        (b"accept-encoding", b"gzip, br"),
        (b"user-agent", b"ua"),
        (b"content-length", b"%d" % len(asked.body)),
    ]


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"model":"demo","messages":[{"role":"user","content":"hi"}],"top_p":NaN}'),
        (CHAT, b'{"model":"demo","messages":[{"role":"user","content":"hi","x":1e400}]}'),
        ("/v1/completions", b'{"model":"demo","prompt":"hi", "temperature":-Infinity}'),
        ("/v1/completions", b'{"model":"demo","prompt":[1.0, 2]}'),
        ("/v1/completions", b'{"model":"demo","prompt":[true, 1]}'),
    ],
)
async def test_what_vllm_alone_reads_reaches_it_as_it_came(path: str, body: bytes) -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=AS_TEXT, tokenizer=demo_tokenizer()) as bench,
    ):
        answer = await bench.ask(post(path, body))
    assert answer.status == 200
    assert [asked.body for asked in upstream.asked] == [body]


async def test_a_replica_of_several_ranks_is_told_which() -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        await bench.ask(post(CHAT, chat("one " * 50)))
        for rank in range(2):
            change = CacheChange(0, rank, 2, Standing.COMPLETE, 16)
            bench.gateway.router.cached(change)
        for _ in range(2):
            await bench.ask(post(CHAT, chat("two " * 50)))
        await bench.ask(post(CHAT, chat("two " * 50), "X-Data-Parallel-Rank: 1\r\n"))
    none, first, again, own = [one.values(b"x-data-parallel-rank") for one in upstream.asked]
    assert none == []
    assert first == again
    assert first in ([b"0"], [b"1"])
    assert own == [b"1"]


async def test_a_request_leaves_no_cycle_behind() -> None:
    """The collector's young generation is large because a request leaves it nothing to do."""
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        await bench.ask(post(CHAT, chat()))
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                await bench.ask(post(CHAT, chat(f"question {number}")))
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {type(one).__name__ for one in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left.isdisjoint({"Life", "Relay", "Exchange", "Lease", "Decision", "Query"})


@pytest.mark.row("H14")
async def test_what_stays_on_the_replicas_hop() -> None:
    headers = (
        "Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\n"
        "Upgrade: h2c\r\nTrailer: x\r\nSet-Cookie: a\r\nDate: now\r\n"
    )
    async with Upstream(answering(ok(b"{}", headers))) as upstream:
        async with gateway(upstream.url) as bench:
            answer = await bench.ask(post(CHAT, chat()))
    assert set(answer.headers) == {
        "content-type",
        "content-length",
        "set-cookie",
        "date",
        "x-request-id",
        "x-tokenlane-forwarded",
        "x-tokenlane-replica",
        "x-tokenlane-route",
    }


BODIES = {
    "spaces": b' { "messages" : [ HI ] ,\r\n\t"model":"demo" } ',
    "twice": b'{"model":"demo","messages":[HI],"temperature":1,"temperature":2}',
    "numbers": b'{"messages":[HI],"a":1.0,"b":1e5,"c":-0,"d":12345678901234567890123}',
    "escapes": b'{"messages":[HI],"a":"\\u00e9\\/\\n","b":"\xc3\xa9"}',
    "unknown": b'{"messages":[HI],"vllm_xargs":{"deep":[{"x":null}]},"":0}',
    "bytes": b'{"messages":[HI],"user":"\xff\xfe"}',
}
HI = b'{"role":"user","content":"\\u0048i"}'
NOT_TEXT = b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'


@pytest.mark.row("P3")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("tokenizer", [None, demo_tokenizer()], ids=["no-tokenizer", "demo"])
async def test_the_body_is_forwarded_as_it_came(body: bytes, tokenizer: Tokenizer | None) -> None:
    body = body.replace(b"HI", HI)
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=AS_TEXT, tokenizer=tokenizer) as bench,
    ):
        client = await bench.client()
        assert (await client.ask(post(CHAT, body))).status == 200
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        framed = b"".join(chunk(body[at : at + 7]) for at in range(0, len(body), 7)) + chunk(b"")
        assert (await client.ask(head + framed)).status == 200
        # Each a request of the gateway's own making: one length, no coding.
        for asked in upstream.asked:
            assert asked.body == body
            assert asked.values(b"content-length") == [b"%d" % len(body)]
            assert not asked.values(b"transfer-encoding")


@pytest.mark.row("P3")
async def test_a_prompt_that_is_no_text_is_refused_by_whoever_reads_it() -> None:
    """As vLLM's server refuses the body; where nothing here reads the prompt, it is left to it."""
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url) as bench:
            assert (await bench.ask(post(CHAT, NOT_TEXT))).status == 200
            assert upstream.asked[0].body == NOT_TEXT
        async with gateway(upstream.url, tokenizer=demo_tokenizer()) as bench:
            answer = await bench.ask(post(CHAT, NOT_TEXT))
            assert (answer.status, answer.error["code"]) == (400, "invalid_unicode")
            assert len(upstream.asked) == 1


@pytest.mark.row("S6")
async def test_no_part_of_a_request_chooses_the_upstream() -> None:
    async with Upstream(answering(ok())) as upstream, Upstream(answering(ok())) as other:
        async with gateway(upstream.url) as bench:
            request = post(other.url + CHAT, chat()).replace(
                b"host: gateway", b"host: " + other.url[7:].encode()
            )
            assert (await bench.ask(request)).status == 200
            assert upstream.asked[0].line == b"POST /v1/chat/completions HTTP/1.1"
            assert upstream.asked[0].values(b"host") == [upstream.url[7:].encode()]
            assert not other.peers


@pytest.mark.parametrize("path", FORWARDED)
async def test_other_paths_are_passed(path: str) -> None:
    body = b'{"model":"demo","input":"x"}'
    async with Upstream(answering(ok(b"[]"))) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(path, body))
        assert (answer.status, answer.body) == (200, b"[]")
        assert answer.headers["x-tokenlane-route"] == "affinity no-tokens"
        assert upstream.asked[0].line == f"POST {path} HTTP/1.1".encode()


REFUSED = {
    "path": (post("/" + CANARY, b"{}"), 404, "not_found"),
    "path-slash": (post(CHAT + "/", b"{}"), 404, "not_found"),
    "path-double": (post("/" + CHAT, b"{}"), 404, "not_found"),
    "path-encoded": (post("/v1/chat%2Fcompletions", b"{}"), 404, "not_found"),
    "path-dots": (post("/v1/../v1/models", b"{}"), 404, "not_found"),
    "metrics": (get("/metrics"), 404, "not_found"),
    "method": (get(CHAT), 405, "method_not_allowed"),
    "method-models": (post("/v1/models", b""), 405, "method_not_allowed"),
    "model": (post(CHAT, json_bytes({"model": CANARY, "messages": []})), 404, "model_not_found"),
    "model-empty": (post(CHAT, b'{"model":"","messages":[]}'), 404, "model_not_found"),
    "model-number": (post(CHAT, b'{"model":7,"messages":[]}'), 400, "invalid_type"),
    "json": (post(CHAT, b'{"messages":[,' + CANARY.encode()), 400, "invalid_json"),
    "empty": (post(CHAT, b""), 400, "invalid_json"),
    "deep": (post(CHAT, b'{"messages":' + b"[" * 100_000), 400, "invalid_json"),
    "messages": (post(CHAT, b'{"model":"demo"}'), 400, "missing_field"),
    "tokenize": (post("/tokenize", b"{"), 400, "invalid_body"),
    "detokenize": (post("/detokenize", b'{"tokens":["x"]}'), 400, "invalid_body"),
    "detokenize-range": (post("/detokenize", b'{"tokens":[-1]}'), 400, "invalid_body"),
    "detokenize-huge": (post("/detokenize", b'{"tokens":[99999999999999999999]}'), 400, None),
    "length": (post(CHAT, b"x" * 2000), 413, "body_too_large"),
}


@pytest.mark.parametrize(("request_bytes", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_refused(request_bytes: bytes, status: int, code: str | None) -> None:
    limit_bytes = 300_000 if len(request_bytes) > 100_000 else 1000
    settings = Settings(server=ServerSettings(body_limit_bytes=limit_bytes))
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            client = await bench.client()
            answer = await client.ask(request_bytes)
            assert (answer.status, answer.whole) == (status, True)
            assert answer.error["code"] == code or code is None
            # The name of a model that nobody serves is the one thing that is repeated.
            assert CANARY not in json.dumps(answer.error) or code == "model_not_found"
            assert answer.headers["x-request-id"]
            assert not upstream.asked
            if status != 413:
                assert (await client.ask(get("/health"), "GET")).status == 200
                outcome = "client_error" if status < 500 else "gateway_error"
                assert bench.outcomes()[str(status), outcome] == 1


async def test_a_replicas_own_500_passes_and_is_no_success() -> None:
    answer_bytes = ok(b"broken").replace(b"200 OK", b"500 Internal Server Error")
    async with Upstream(answering(answer_bytes)) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat()))
        assert (answer.status, answer.body) == (500, b"broken")
        assert bench.outcomes() == {("500", "upstream_error"): 1}


async def test_a_wrong_method_says_which_are_right() -> None:
    async with gateway() as bench:
        answer = await bench.ask(get(CHAT), "GET")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


def fleet(*states: ReplicaState) -> FleetState:
    return FleetState(1, states)


def replica(slot: int, **fields: object) -> ReplicaState:
    common: dict[str, object] = {"up": True, "models": ("demo",), **fields}
    url = f"http://127.0.0.1:{9000 + slot}"
    return ReplicaState(id=str(slot), slot=slot, url=url, **common)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (fleet(), 503, "replicas_down"),
        (fleet(replica(0, up=False)), 503, "replicas_down"),
        (fleet(replica(0, draining=True)), 503, "replicas_draining"),
        (fleet(replica(0, models=("other",))), 404, "model_not_found"),
        (fleet(replica(0, models=("other",)), replica(1, up=False)), 503, "replicas_down"),
    ],
)
async def test_nobody_can_take_it(state: FleetState, status: int, code: str) -> None:
    async with gateway(state=state) as bench:
        answer = await bench.ask(post(CHAT, chat()))
        assert (answer.status, answer.error["code"]) == (status, code)
        if status == 503:
            assert answer.headers["retry-after"] == "1"
        else:
            assert answer.error["type"] == "NotFoundError"
            assert answer.error["param"] == "model"


async def test_a_model_must_be_named_where_there_are_several() -> None:
    state = fleet(replica(0, models=("one", "two")))
    async with gateway(state=state) as bench:
        answer = await bench.ask(post(CHAT, b'{"messages":[]}'))
        assert (answer.status, answer.error["param"]) == (400, "model")
        assert "one, two" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "served", "said"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", ""),
        ("Qwen%2FQwen3-8B", "Qwen/Qwen3-8B", ""),
        ("chat", "chat", ""),
        ("qwen3", "", 'The model "qwen3" does not exist; did you mean "qwen2"? Served: '),
        ("qwen/qwen3-8b", "", 'The model "qwen/qwen3-8b" does not exist; did you mean "Qwen/Qwen'),
        ("zzz", "", 'The model "zzz" does not exist. Served: Qwen/Qwen3-8B, qwen2, chat.'),
        ("a%00b", "", "The model does not exist. Served: "),
        ("z" * 200, "", "The model does not exist. Served: "),
        ("..%2f..%2fhealth", "", 'The model "../../health" does not exist. Served: '),
    ],
)
async def test_one_model(path: str, served: str, said: str) -> None:
    models = ModelSettings(aliases={"chat": "qwen2"})
    state = fleet(replica(0, models=("Qwen/Qwen3-8B", "qwen2"), max_model_tokens=100))
    async with gateway(settings=Settings(models=models), state=state) as bench:
        answer = await bench.ask(get(f"/v1/models/{path}"), "GET")
        listed = (await bench.ask(get("/v1/models"), "GET")).json["data"]
        refused = await bench.ask(post(f"/v1/models/{path}", b"{}"))
    assert refused.status == 405
    if served:
        assert answer.json in listed
        assert answer.json["id"] == served
    else:
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert answer.error["message"].startswith(said)


async def test_models_and_health() -> None:
    state = fleet(
        replica(0, models=("a", "b"), max_model_tokens=100),
        replica(1, models=("b", "c"), max_model_tokens=50, up=False),
    )
    async with gateway(state=state) as bench:
        client = await bench.client()
        listed = (await client.ask(get("/v1/models"), "GET")).json
        assert listed["object"] == "list"
        cards = {card["id"]: card["max_model_len"] for card in listed["data"]}
        assert cards == {"a": 100, "b": 50, "c": 50}
        assert {card["object"] for card in listed["data"]} == {"model"}
        head = await client.ask(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", "HEAD")
        assert int(head.headers["content-length"]) > 50
        assert (await client.ask(get("/health"), "GET")).status == 200
        bench.gateway.draining = True
        answer = await client.ask(get("/health"), "GET")
        assert (answer.status, answer.error["code"]) == (503, "not_ready")
        bench.gateway.draining = False
        bench.gateway.update(fleet(replica(0, draining=True)))
        assert (await client.ask(get("/health"), "GET")).status == 503


async def test_tokenize_and_detokenize_are_answered_here() -> None:
    tokenizer = demo_tokenizer()
    state = fleet(replica(0, max_model_tokens=77, proofs={"demo": PROVEN}))
    async with gateway(state=state, tokenizer=tokenizer) as bench:
        client = await bench.client()
        body = json_bytes({"model": "demo", "prompt": "hello world", "return_token_strs": True})
        answer = (await client.ask(post("/tokenize", body))).json
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert answer["max_model_len"] == 77
        back = json_bytes({"model": "demo", "tokens": answer["tokens"]})
        assert (await client.ask(post("/detokenize", back))).json == {"prompt": "hello world"}
        chatted = (await client.ask(post("/tokenize", chat("hello world")))).json
        assert chatted["count"] > answer["count"]
        assert chatted["token_strs"] is None


async def test_without_a_tokenizer_a_replica_is_asked() -> None:
    async with Upstream(answering(ok(b'{"count":1}'))) as upstream:
        async with gateway(upstream.url) as bench:
            for path in ("/tokenize", "/detokenize"):
                body = b'{"model":"demo","prompt":"x","tokens":[1]}'
                answer = await bench.ask(post(path, body))
                assert (answer.status, answer.body) == (200, b'{"count":1}')
                assert upstream.asked[-1].body == body


async def test_many_at_once_leave_nothing_behind() -> None:
    async with Upstream(answering(stream())) as one, Upstream(answering(stream())) as other:
        async with gateway(one.url, other.url, tokenizer=demo_tokenizer()) as bench:
            clients = [await bench.client() for _ in range(40)]
            for client in clients:
                await client.send(post(CHAT, chat(stream=True)) * 3)
            for client in clients:
                for _ in range(3):
                    assert (await client.answer()).body == b"".join(EVENTS)
            await until(lambda: bench.idle)
            assert bench.outcomes() == {("200", "ok"): 120}


PRICE = Price(input_per_million=2.0, cached_input_per_million=0.5, output_per_million=10.0)

COUNTS = {"prompt_tokens": 1000, "completion_tokens": 10}

PRICED = [
    (
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 600}},
        400 * 2.0 + 600 * 0.5 + 10 * 10.0,
    ),
    (COUNTS, 1000 * 2.0 + 10 * 10.0),
    ({**COUNTS, "completion_tokens": None}, 1000 * 2.0),
]


@pytest.mark.parametrize(("usage", "cost"), PRICED)
async def test_what_an_answer_costs(usage: dict[str, Any], cost: float) -> None:
    settings = Settings(prices={"demo": PRICE})
    async with Upstream(answering(ok(json_bytes({"choices": [], "usage": usage})))) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            await bench.ask(post(CHAT, chat()))
            await until(lambda: bench.metric(families.COST, "demo") > 0)
            assert bench.metric(families.COST, "demo") == pytest.approx(cost / 1e6)
            tokens = bench.metric(families.OUTPUT_TOKENS, "demo")
            assert tokens == (usage["completion_tokens"] or 0)


REFUSAL = ok(b'{"error":{"message":"no"}}')
UNPRICED = {
    **{status: REFUSAL.replace(b"200", b"%d" % status) for status in (400, 429, 500, 503)},
    502: b"this is no answer\r\n\r\n",
}


@pytest.mark.parametrize("status", UNPRICED)
async def test_what_a_replica_does_not_answer_costs_nothing(status: int) -> None:
    settings = Settings(prices={"demo": PRICE})
    async with Upstream(answering(UNPRICED[status])) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            assert (await bench.ask(post(CHAT, chat()))).status == status
            await until(lambda: bench.metric(families.PROMPT_TOKENS, "demo") > 0)
            assert bench.metric(families.COST, "demo") == 0


@pytest.mark.row("S7")
async def test_no_path_or_model_makes_a_series() -> None:
    """Of clients' words, only those the settings and the replicas know become labels."""
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:

        def series() -> set[tuple[str, tuple[str, ...]]]:
            return {(family.name, labels) for family, labels, _ in bench._metrics.samples()}

        async def ask(number: int) -> None:
            for request in (
                post(f"/v1/x{number}", chat()),
                get(f"/health?{number}"),
                post(CHAT, json_bytes({"model": f"m{number}", "messages": []})),
                post(CHAT, chat(), f"x-tokenlane-replica: {number}\r\n"),
            ):
                await bench.ask(request, "GET" if request[:3] == b"GET" else "POST")

        await ask(0)
        before = series()
        for number in range(1, 200):
            await ask(number)
        assert series() == before

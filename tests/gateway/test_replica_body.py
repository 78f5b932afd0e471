"""Forwarded ids: instead of the text, where that is proven, and nothing else changed."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.admission.test_auth import ALICE, AUTH, bearer
from tests.raw import Upstream, answering, json_bytes, ok, post
from tests.support import demo_tokenizer, gateway
from tokenlane.admission.auth import tenant_salt
from tokenlane.config.settings import (
    AuthSettings,
    ModelSettings,
    RequestSettings,
    Settings,
    TokenSettings,
)
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.parts import BodyParts, whole
from tokenlane.prompt import Prompt
from tokenlane.protocols import inspection, json_values
from tokenlane.protocols.bodies import ChatBody, Kind, OtherBody
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.caches.listed_ids import ListedIdsCache
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.ids import pack


async def rewritten(asked: dict[str, Any], *sequences: list[int]) -> Any:
    raw = json.dumps(asked).encode()
    request = inspect(Kind.CHAT if "messages" in asked else Kind.COMPLETION, raw)
    assert not isinstance(request, OtherBody)
    body = ReplicaBody.taken_apart(raw)
    prompt = Prompt(tuple(pack(ids) for ids in sequences), b"", 16, sum(map(len, sequences)))
    made = await body.with_ids(request, prompt, ListedIdsCache(Budget(10**6, 10**5)))
    return json.loads(whole(made))


OTHERS = st.dictionaries(
    st.sampled_from(["model", "temperature", "stop", "x-vendor", "logit_bias"]),
    st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one, max_size=3)),
).map(lambda fields: {**fields, "model": "demo"})


def test_what_cannot_be_taken_apart_is_not_tried_again() -> None:
    body = ReplicaBody.taken_apart(b"[]")
    assert body.fields is None
    assert body.apart() is body
    assert body.copy().apart().fields is None


@pytest.mark.row("P3")
@given(OTHERS, st.lists(st.integers(0, 2**32 - 1), max_size=5000))
async def test_a_prompt_becomes_its_ids_and_the_rest_stays(others: Any, ids: list[int]) -> None:
    assert await rewritten({"prompt": "hi", **others}, ids) == {"prompt": ids, **others}


async def test_several_prompts() -> None:
    two = await rewritten({"prompt": ["a", "b"]}, [1], [2, 3])
    assert two["prompt"] == [[1], [2, 3]]
    assert (await rewritten({"prompt": ["a"]}, [1]))["prompt"] == [[1]]


async def test_a_chat_carries_its_ids_beside_its_messages() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
    made = await rewritten(asked, [1, 2])
    assert made == {**asked, "kv_transfer_params": {"prompt_token_ids": [1, 2]}}


@pytest.mark.parametrize("at", [0, 20, -2, -1, None])
async def test_so_does_one_that_came_in_parts(at: int | None) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
    raw = json.dumps(asked).encode() + b" "
    request = inspect(Kind.CHAT, raw)
    assert isinstance(request, ChatBody)
    same, rest = (raw, b"") if at is None else (raw[:at], raw[at:])
    body = ReplicaBody(BodyParts([same], rest))
    assert whole(await body.text()) == raw
    prompt = Prompt((pack([1, 2]),), b"", 16, 2)
    made = whole(await body.with_ids(request, prompt, ListedIdsCache(Budget(10**6, 10**5))))
    assert json.loads(made) == {**asked, "kv_transfer_params": {"prompt_token_ids": [1, 2]}}


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    ("asked", "takes"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "echo": True}, False),
        ({"prompt": "a", "truncate_prompt_tokens": 3}, False),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"messages": [], "tools": []}, True),
        ({"messages": [], "continue_final_message": True}, True),
        ({"messages": [], "kv_transfer_params": {"do_remote_decode": True}}, False),
        ({"messages": [], "return_prompt_text": False}, False),
        ({"messages": [], "truncation_side": "left"}, False),
    ],
)
def test_what_is_answered_by_ids_as_by_text(asked: dict[str, Any], takes: bool) -> None:
    raw = json.dumps(asked).encode()
    request = inspect(Kind.CHAT if "messages" in asked else Kind.COMPLETION, raw)
    assert not isinstance(request, OtherBody)
    assert ReplicaBody.taken_apart(raw).takes_ids(request) == takes


@given(
    fields=st.dictionaries(
        st.sampled_from(["model", "n", "cache_salt", "x y", "prompt"]),
        st.sampled_from([None, 1, "a", [1, {"b": 2}], 1.5]),
    ),
    changes=st.dictionaries(
        st.sampled_from(["model", "n", "cache_salt", "new"]), st.sampled_from([b"2", b'"s"', None])
    ),
    around=st.sampled_from(["", " ", "\n\t "]),
    indent=st.sampled_from([None, 1]),
)
async def test_changes_and_nothing_else(
    fields: dict[str, Any], changes: dict[str, bytes | None], around: str, indent: int | None
) -> None:
    raw = (around + json.dumps(fields, indent=indent) + around).encode()
    body = ReplicaBody.taken_apart(raw)
    body.change({name: value for name, value in changes.items() if value or name in fields})
    wanted = dict(fields)
    for name, value in changes.items():
        if value is None:
            wanted.pop(name, None)
        else:
            wanted[name] = json.loads(value)
    made = whole(await body.text())
    assert json.loads(made) == wanted
    if all(value and name not in fields for name, value in changes.items()):
        # What is only added to leaves every byte where it was.
        assert made.startswith(raw.rstrip()[:-1] if changes else raw)


@pytest.mark.parametrize("raw", [b"{}", b"{ }", b" {\n\t} "])
async def test_a_field_is_added_to_an_empty_body(raw: bytes) -> None:
    body = ReplicaBody.taken_apart(raw)
    body.put("cache_salt", b'"s"')
    assert json.loads(whole(await body.text())) == {"cache_salt": "s"}


@pytest.mark.parametrize("at", [0, 20, -2, -1, None])
async def test_a_field_is_added_to_one_that_came_in_parts(at: int | None) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], "seed": 1}).encode() + b" "
    same, rest = (raw, b"") if at is None else (raw[:at], raw[at:])
    body, whole_body = ReplicaBody(BodyParts([same], rest)), ReplicaBody(raw)
    body.put("cache_salt", b'"s"')
    whole_body.put("cache_salt", b'"s"')
    made = await body.text()
    assert whole(made) == await whole_body.text()
    # What came before the last part is not copied.
    assert isinstance(made, bytes) or made.same == [same]
    assert isinstance(made, bytes) == (b"}" not in rest)


COMPLETION = {"model": "demo", "prompt": "hello there"}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("mode", "path", "asked", "carries"),
    [
        ("off", "/v1/completions", COMPLETION, False),
        ("completions", "/v1/completions", COMPLETION, True),
        ("completions", "/v1/chat/completions", CHAT, False),
        ("all", "/v1/chat/completions", CHAT, True),
        ("all", "/v1/completions", {**COMPLETION, "prompt": "word " * 3000}, True),
    ],
)
async def test_what_a_replica_sees(
    mode: Any, path: str, asked: dict[str, Any], carries: bool
) -> None:
    forwarding = Settings(tokens=TokenSettings(forward_tokens=mode))
    async with (
        Upstream(answering(ok())) as replica,
        gateway(replica.url, settings=forwarding, tokenizer=demo_tokenizer()) as bench,
    ):
        assert (await bench.ask(post(path, json_bytes(asked)))).status == 200
        seen = json.loads(replica.asked[0].body)
    tokenizer = demo_tokenizer()
    if not carries:
        assert seen == asked
    elif "prompt" in asked:
        ids = tokenizer.encode(asked["prompt"], add_special_tokens=True)
        assert pack(seen["prompt"]) == ids
    else:
        assert tokenizer.decode(pack(seen["kv_transfer_params"]["prompt_token_ids"])).count("hello")


async def test_a_replica_that_counts_otherwise_gets_text_again() -> None:
    usage = {"usage": {"prompt_tokens": 999, "completion_tokens": 1, "total_tokens": 1000}}
    forwarding = Settings(tokens=TokenSettings(forward_tokens="all"))
    async with (
        Upstream(answering(ok(json_bytes(usage)), ok())) as replica,
        gateway(replica.url, settings=forwarding, tokenizer=demo_tokenizer()) as bench,
    ):
        for _ in range(2):
            await bench.ask(post("/v1/chat/completions", json_bytes(CHAT)))
        first, second = (json.loads(one.body) for one in replica.asked)
    assert "kv_transfer_params" in first
    assert second == CHAT


class Counting:
    """A decoder that counts the bodies that it is given."""

    def __init__(self, decode: Any, least_bytes: int) -> None:
        self._decode = decode
        self._least_bytes = least_bytes
        self.count = 0

    def decode(self, raw: bytes) -> Any:
        self.count += len(raw) >= self._least_bytes
        return self._decode(raw)

    __call__ = decode


LONG = "word " * 300
asked_bodies = st.tuples(
    st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
    st.fixed_dictionaries(
        {"model": st.sampled_from(["demo", "usual"])},
        optional={
            "cache_salt": st.sampled_from(["s", "", None]),
            "priority": st.integers(-3, 3),
            "max_tokens": st.integers(1, 200),
            "temperature": st.sampled_from([0, 0.5, 1e-7]),
            "x-vendor": st.sampled_from([[1, {"a": None}], "é\n", {}]),
        },
    ),
    st.sampled_from([None, 1]),
    st.permutations([0, 1, 2, 3, 4, 5, 6]),
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    asked=asked_bodies,
    ruled=st.booleans(),
    named=st.booleans(),
    tenant=st.booleans(),
    mode=st.sampled_from(["off", "completions", "all"]),
)
async def test_the_replica_gets_the_edits_and_nothing_else(
    asked: tuple[str, dict[str, Any], int | None, list[int]],
    ruled: bool,
    named: bool,
    tenant: bool,
    mode: Any,
) -> None:
    path, fields, indent, order = asked
    chat = path.endswith("chat/completions")
    said = {"messages": [{"role": "user", "content": LONG}]} if chat else {"prompt": LONG}
    pairs = [*{**fields, **said}.items()]
    pairs = [pairs[at] for at in order if at < len(pairs)]
    raw = json.dumps(dict(pairs), indent=indent, ensure_ascii=False).encode()
    given_settings = Settings(
        tokens=TokenSettings(forward_tokens=mode),
        auth=AUTH if tenant else AuthSettings(),
        models=ModelSettings(aliases={"usual": "demo"} if named else {}),
        requests=RequestSettings(stripped_fields=("priority",), output_limit_tokens=100)
        if ruled
        else RequestSettings(),
    )
    wanted: dict[str, Any] = {**dict(pairs)}
    if named:
        wanted["model"] = "demo"
    if tenant:
        wanted["cache_salt"] = tenant_salt("alice", fields.get("cache_salt") or None)
    if ruled:
        wanted.pop("priority", None)
        wanted["max_tokens"] = min(fields.get("max_tokens", 100), 100)
    served = named or fields["model"] == "demo"
    with pytest.MonkeyPatch.context() as patch:
        whole = Counting(json_values._decode, len(raw) // 2)
        kind = Kind.CHAT if chat else Kind.COMPLETION
        typed = Counting(inspection._DECODERS[kind].decode, len(raw) // 2)
        patch.setattr(json_values, "_decode", whole)
        patch.setitem(inspection._DECODERS, kind, typed)
        async with (
            Upstream(answering(ok())) as replica,
            gateway(replica.url, settings=given_settings, tokenizer=demo_tokenizer()) as bench,
        ):
            answer = await bench.ask(post(path, raw, bearer(ALICE) if tenant else ""))
        assert whole.count + typed.count == 1
    assert answer.status == (200 if served else 404)
    if not served:
        return
    got = replica.asked[0].body
    if (mode == "completions" and not chat) or mode == "all":
        sent = json.loads(got)
        ids = sent.pop("kv_transfer_params")["prompt_token_ids"] if chat else sent.pop("prompt")
        assert demo_tokenizer().decode(pack(ids)).count("word") == 300
        if not chat:
            del wanted["prompt"]
        assert sent == wanted
        return
    assert json.loads(got) == wanted
    if wanted == dict(pairs):
        assert got == raw
    for name, value in pairs:
        if name in wanted and wanted[name] == value:
            # Untouched values keep their spelling.
            spelled = json.dumps(value, ensure_ascii=False).encode()
            assert indent or spelled in got

"""Bodies: whatever the bytes are, the outcome is a request or a 400; equal keys mean equal ids."""

import json
import math
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind, OtherBody
from tokenlane.protocols.inspection import inspect, short_salt
from tokenlane.protocols.json_values import fields
from tokenlane.tokens.keys import prompt_bytes, salt, salt_of, token_key

CANARY = "Xq7canary"
NAMES = st.sampled_from([*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "other"])
MESSAGES = [{"role": "user", "content": "hello"}]


def chat(**values: Any) -> ChatBody:
    body = inspect(Kind.CHAT, json.dumps({"messages": MESSAGES, **values}).encode())
    assert isinstance(body, ChatBody)
    return body


def completion(**values: Any) -> CompletionBody:
    body = inspect(Kind.COMPLETION, json.dumps({"prompt": "hello", **values}).encode())
    assert isinstance(body, CompletionBody)
    return body


def test_a_chat() -> None:
    body = chat(model="demo", stream=True, max_tokens=5, unknown={"a": 1}, temperature=0.1)
    assert (body.model, body.stream, body.max_tokens) == ("demo", True, 5)
    assert json.loads(bytes(prompt_bytes(body))) == MESSAGES


def test_a_completion_and_another() -> None:
    assert bytes(prompt_bytes(completion(prompt=[1, 2]))) == b"[1, 2]"
    other = inspect(Kind.OTHER, b'{"model":"m","input":"x","stream":null}')
    assert isinstance(other, OtherBody)
    assert (other.model, other.stream) == ("m", None)


@pytest.mark.parametrize(
    ("values", "stream", "tokens"),
    [({"stream": "true", "max_tokens": "5"}, True, 5), ({"stream": 1, "max_tokens": 5.0}, True, 5)],
)
def test_spellings_that_vllm_takes(values: dict[str, Any], stream: bool, tokens: int) -> None:
    body = chat(**values)
    assert (body.stream, body.max_tokens) == (stream, tokens)


REFUSED: list[tuple[str, str, str | None, bytes]] = [
    ("nothing", "invalid_json", None, b""),
    ("cut", "invalid_json", None, b'{"messages":['),
    ("two", "invalid_json", None, b'{"messages":[]}{}'),
    ("list", "invalid_type", None, b"[]"),
    ("null", "invalid_type", None, b"null"),
    ("utf-8", "invalid_json", None, b'{"messages":[],"model":"\xff"}'),
    ("utf-16", "invalid_json", None, '{"messages":[]}'.encode("utf-16")),
    ("bom", "invalid_json", None, b'\xef\xbb\xbf{"messages":[]}'),
    ("nan", "invalid_json", None, b'{"messages":[],"n":NaN}'),
    ("nan-surrogate", "invalid_json", None, b'{"messages":["\\ud800"],"seed":NaN}'),
    ("nan-name", "invalid_json", None, b'{"messages":[],"seed":NaN,"\\ud800":1}'),
    ("nan-deep", "invalid_json", None, b'{"seed":NaN,"messages":' + b"[" * 100_000),
    ("nan-cut", "invalid_json", None, b'{"seed":NaN,"messages":[]'),
    ("nan-two", "invalid_json", None, b'{"seed":NaN,"messages":[]}{}'),
    ("nan-comma", "invalid_json", None, b'{"seed":NaN,"messages":[],}'),
    ("nan-utf-8", "invalid_json", None, b'{"seed":NaN,"messages":["\xff"]}'),
    ("surrogate", "invalid_json", None, b'{"messages":[],"model":"\\ud800"}'),
    ("single-quotes", "invalid_json", None, b"{'messages':[]}"),
    ("deep", "invalid_json", None, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("no-messages", "missing_field", "messages", b"{}"),
    ("model-number", "invalid_type", "model", b'{"messages":[],"model":5}'),
    ("stream-word", "invalid_type", "stream", b'{"messages":[],"stream":"%b"}' % CANARY.encode()),
    ("n-word", "invalid_type", "n", b'{"messages":[],"n":"%b"}' % CANARY.encode()),
    ("n-fraction", "invalid_type", "n", b'{"messages":[],"n":1.5}'),
    ("n-digits", "invalid_type", "n", b'{"messages":[],"n":' + b"9" * 5000 + b"}"),
    ("key", "invalid_json", None, b'{"messages":[],%b}' % CANARY.encode()),
]


@pytest.mark.row("P1")
@pytest.mark.parametrize(
    ("code", "param", "body"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(code: str, param: str | None, body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        inspect(Kind.CHAT, body)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, code, param)
    assert CANARY not in error.message


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "Infinity", "1e400", '{"a":[NaN]}'])
def test_numbers_that_python_alone_reads(odd: str) -> None:
    asked = '{"messages" : [ 1 ] ,"model":"m","seed":ODD,"stream":true, "n" :2}'.replace("ODD", odd)
    body = inspect(Kind.CHAT, asked.encode())
    assert isinstance(body, ChatBody)
    assert (body.model, body.stream, body.n) == ("m", True, 2)
    assert bytes(body.messages) == b"[ 1 ]"
    body = inspect(Kind.CHAT, b'{"messages":[1],"messages":%b}' % odd.encode())
    assert isinstance(body, ChatBody)
    assert bytes(prompt_bytes(body)) == odd.encode()


@given(
    st.dictionaries(
        st.text(max_size=5) | NAMES,
        st.recursive(
            st.none() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3),
        ),
    )
)
def test_fields_are_read_as_python_reads_them(values: dict[str, Any]) -> None:
    for indent in (None, 1):
        found = fields(json.dumps({**values, "odd": math.inf}, indent=indent).encode())
        assert found.keys() == {*values, "odd"}
        for name, value in values.items():
            assert repr(json.loads(bytes(found[name]))) == repr(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.mark.row("P1")
@given(st.sampled_from(Kind), st.binary(max_size=60) | st.dictionaries(NAMES, JSON, max_size=4))
def test_a_request_or_a_400(kind: Kind, given_body: bytes | dict[str, Any]) -> None:
    raw = given_body if isinstance(given_body, bytes) else json.dumps(given_body).encode()
    try:
        body = inspect(kind, raw)
    except RequestError as error:
        refused = error
        assert refused.status == 400
        return
    if not isinstance(body, OtherBody):
        token_key("demo", "demo", body)
        salt("demo", body)
        assert bytes(prompt_bytes(body)) in raw


@given(st.text(min_size=6, max_size=20), NAMES)
def test_messages_never_repeat_a_value(text: str, name: str) -> None:
    secret = CANARY + text
    for value in (secret, [secret], {secret: secret}):
        for kind in Kind:
            try:
                inspect(kind, json.dumps({name: value}).encode())
            except RequestError as error:
                message = error.message
                assert CANARY not in message


# Fields by whether they decide the ids (or the hashes) of a chat.
DECIDING: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "other"}]},
    {"tools": []},
    {"tools": None},
    {"documents": []},
    {"chat_template": "x"},
    {"chat_template_kwargs": {}},
    {"reasoning_effort": "low"},
    {"add_generation_prompt": False},
    {"continue_final_message": False},
    {"add_special_tokens": False},
    {"truncate_prompt_tokens": 5},
    {"truncation_side": "left"},
    {"kv_transfer_params": {}},
    {"cache_salt": "x"},
]
INDIFFERENT: list[dict[str, Any]] = [
    {"model": "other"},
    {"stream": True},
    {"n": 2},
    {"max_tokens": 5},
    {"max_completion_tokens": 5},
    {"temperature": 1},
    {"user": "x"},
    {"response_format": {}},
]


def test_every_deciding_field_has_a_key_of_its_own() -> None:
    keys = [token_key("demo", "demo", chat())]
    keys += [token_key("demo", "demo", chat(**values)) for values in DECIDING]
    keys += [
        token_key("other", "other", chat()),
        token_key("other", "demo", chat()),
        token_key("demo", "demo", completion()),
    ]
    keys += [
        token_key("demo", "demo", completion(suffix=None)),
        token_key("demo", "demo", completion(prompt="x")),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


@pytest.mark.parametrize("values", INDIFFERENT, ids=lambda values: next(iter(values)))
def test_other_fields_do_not_change_the_key(values: dict[str, Any]) -> None:
    assert token_key("demo", "demo", chat(**values)) == token_key("demo", "demo", chat())


def test_a_key_is_of_one_process() -> None:
    """Whoever knew how it is seeded could make two chats that share one."""
    made = "from tests.protocols.test_inspection import *; print(token_key('m', 'm', chat()).hex())"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", made]
    other = subprocess.check_output(run, text=True, env=os.environ | paths).strip()
    assert len(other) == 32
    assert other != token_key("m", "m", chat()).hex()


VALUES = st.sampled_from([b"", b"1", b"[]", b"{}", b'"0:2:[]"', b"[[]]", b'"x"', b"11"])
SALTS = st.sampled_from([None, "", "a", "a0:2:[]", "a1:2:[]", "0:1:1", "\x00"])


@given(*[st.tuples(VALUES, VALUES, VALUES, SALTS, st.sampled_from(["demo", "other"]))] * 2)
@example((b"[]", b"[]", b"", "a", "demo"), (b"[]", b"", b"", "a0:2:[]", "demo"))
@example((b"[]", b"", b"[]", None, "demo"), (b"[]", b"", b"", "1:2:[]", "demo"))
def test_keys_are_equal_iff_the_fields_are(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    def key(case: tuple[Any, ...]) -> bytes:
        messages, tools, documents, cache_salt, model = case
        values = {"messages": messages, "tools": tools, "documents": documents}
        raw: dict[str, Any] = {name: msgspec.Raw(one) for name, one in values.items() if one}
        body = ChatBody(**raw, cache_salt=cache_salt)
        return token_key(model, "demo", body)

    def meaning(case: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*case[:3], case[3] or "", case[4])

    assert (key(one) == key(other)) == (meaning(one) == meaning(other))


@pytest.mark.row("P1")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["model", "stream", "n", "m\\u006fdel", "cache_salt", "\\u006e"]),
            st.sampled_from(["a", "b"]),
            st.booleans(),
            st.integers(1, 3),
        ),
        max_size=8,
    )
)
def test_repeated_keys_are_read_as_a_replica_reads_them(
    fields: list[tuple[str, str, bool, int]],
) -> None:
    """Python's json, which vLLM's server reads bodies with, takes the last one."""
    pairs = ['"messages":[]']
    for key, word, truth, number in fields:
        name = json.loads(f'"{key}"')
        value = {"stream": truth, "n": number}.get(name, word)
        pairs.append(f'"{key}":{json.dumps(value)}')
    raw = "{" + ",".join(pairs) + "}"
    body, other = inspect(Kind.CHAT, raw.encode()), json.loads(raw)
    assert isinstance(body, ChatBody)
    for name in ("model", "stream", "n", "cache_salt"):
        found = getattr(body, name)
        assert (None if found is msgspec.UNSET else found) == other.get(name)
        assert (found is msgspec.UNSET) == (name == "cache_salt" and name not in other)


def test_a_long_salt_is_known_by_a_digest() -> None:
    """Those that clients really send stay what they are: replicas' events hold them, too."""
    assert salt_of("m", "s") == b"m\0s"
    for sent in ("s", "é" * 256, "s" * 256):
        assert short_salt(sent) == sent
    long = ["s" * 257, "s" * 258, "s" * 256 + "t", "s" * 1_000_000]
    made = {short_salt(sent) for sent in long}
    assert len(made) == len(long)
    assert set(map(len, made)) == {320}
    for sent in long:
        read = inspect(Kind.CHAT, json.dumps({"messages": [], "cache_salt": sent}).encode())
        assert isinstance(read, ChatBody)
        assert read.cache_salt == short_salt(sent)

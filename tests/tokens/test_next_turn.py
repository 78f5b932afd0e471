"""Bodies that begin as earlier ones did: the same ids, hashes and fields as if all were read."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from sys import getsizeof
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.tools.chatml import with_template
from tests.examples import many
from tests.tokens.models import SHARED_NAMES, folder_with, shared
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError
from tokenlane.http.body_pieces import BodyPieces
from tokenlane.parts import BODY_PART_BYTES, NAME_BYTES, BodyParts, RawBody, whole
from tokenlane.protocols.bodies import ChatBody, Kind, OtherBody
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.body_marks import is_list_read, message_ends
from tokenlane.tokens.caches.body_prefixes import LEAST_BYTES, OPENING_BYTES
from tokenlane.tokens.chat.residual import Continuations, Guard, Residual, continuation
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.keys import opening_seed, tail_key
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

LOOP = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLS = """\
{%- for m in messages %}
    {%- if m.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content }}
        {%- for call in m.tool_calls or [] %}
            {%- if m.content or not loop.first %}{{ '\n' }}{% endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string
                else call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# As Qwen3's: looks for the last question, and says more of what comes behind it.
BACK = (
    "{% set ns = namespace(open=true, at=messages | length - 1) %}{% for m in messages[::-1] %}"
    "{% set index = (messages | length - 1) - loop.index0 %}"
    "{% if ns.open and m.role == 'user' and not m.content.startswith('so') %}"
    "{% set ns.open = false %}{% set ns.at = index %}{% endif %}{% endfor %}"
) + CALLS.replace(
    "'<|im_start|>' + m.role", "'<|im_start|>' + ('+' if loop.index0 > ns.at else '') + m.role"
)
# Templates that say of known messages what depends on the new ones, or the other way round.
ODD = {
    "loop": LOOP,
    "calls": CALLS,
    "back": BACK,
    "system again": LOOP + "{{ messages[0].content }}<|im_start|>",
    "last first": "<|im_start|>{{ messages[-1].content }}<|im_end|>" + LOOP,
    "count first": "{{ messages | length }}" + LOOP,
    "last asked": "{% if messages[-1].content == 'stop' %}STOP{% endif %}" + LOOP,
    "first asked": "{% if messages[0].content.startswith('so') %}SO{% endif %}" + LOOP,
    "each asked": LOOP.replace(
        "{{ m.content }}", "{% if '</think>' in m.content %}-{% else %}{{ m.content }}{% endif %}"
    ),
    "old ones otherwise": LOOP.replace(
        "{{ m.content }}", "{{ m.content }}{% if not loop.last %}<|im_end|>{% endif %}"
    ),
    "stripped": LOOP.replace("{{ m.content }}", "{{ m.content | trim }}"),
    "stripped and asked": LOOP.replace(
        "{{ m.content }}",
        "{% set c = m.content | trim %}{{ '!' if c.startswith('s') }}{{ c or '-' }}",
    ),
    "last three": LOOP.replace("in messages", "in messages[-3:]"),
    "printed": LOOP.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls }}"),
    "roles first": "{% for m in messages %}{{ m.role }} {% endfor %}" + LOOP,
}
PAD = "word after word " * (LEAST_BYTES // 16 + 20)
# Of a body that is known by its opening alone.
SHORT_PAD = "word after word " * (OPENING_BYTES // 16 + 20)
TEXTS = [
    "a", "", "stop", "so", " spaces ", "<|im_end|>", "<|im_start|>user\nb", "x</think>y", "é🧵",
    'code = {"role": "user"}, {', '"}, {"role": "user", "content": "', "\\u0061", "line\nline",
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": name, "description": 'its "messages" — all'}}
    for name in ("f", "g")
]
# A tool whose property is named as the messages are.
SENDS = {"name": "send", "parameters": {"properties": {"messages": {"type": "array"}}}}
MANY = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(8))


@cache
def tokenizer(name: str) -> Tokenizer:
    if name == "demo":
        return Tokenizer.load("m", demo_folder())
    with TemporaryDirectory() as made:
        if name in SHARED_NAMES:
            return Tokenizer.load(name, with_template(shared(name), Path(made) / name))
        return Tokenizer.load("m", folder_with(Path(made), chat_template=ODD[name]))


def service(name: str, cache_bytes: int = 64 << 20, *, hop_s: float = 0.0) -> TokenService:
    """Return a service that encodes no opening on the loop, however fast the machine, as what the
    short rung makes of a long one leaves no body to go on from. hop_s: it makes everything there,
    however slow the machine."""
    made = TokenSettings(
        cache_limit_bytes=cache_bytes,
        threads=1,
        stall_budget_s=hop_s or 1e-9,
        thread_hop_s=hop_s or TokenSettings().thread_hop_s,
    )
    return TokenService(made, ModelTokenizers({"m": tokenizer(name)}), 16)


def arrived(own: TokenService, raw: bytes, cuts: Sequence[int]) -> RawBody:
    """A body that comes in pieces."""
    pieces = BodyPieces(own.bodies.part)
    places = sorted(cut % (len(raw) + 1) for cut in cuts)
    for start, end in pairwise([0, *places, len(raw)]):
        pieces.add(raw[start:end])
        assert pieces.size_bytes == end
    rest = b"".join(pieces.rest)
    return BodyParts(pieces.same, rest) if pieces.same else rest


async def read(
    own: TokenService,
    raw: bytes,
    cuts: Sequence[int] = (),
    *,
    keeps_ids: bool = True,
    kind: Kind = Kind.CHAT,
) -> tuple[Any, ...]:
    """All that the rest of the gateway sees of a body. cuts: where its pieces end; none for one
    that came whole."""
    body = arrived(own, raw, cuts) if cuts else raw
    assert whole(body) == raw
    turn = own.begun(kind, body)
    try:
        request = inspect(kind, raw) if turn is None else turn.request
        assert not isinstance(request, OtherBody)
        if turn is not None:
            turn.complete()
        fields = [
            bytes(value) if isinstance(value, msgspec.Raw) else value
            for value in (getattr(request, name) for name in request.__struct_fields__)
        ]
        known = own.known("m", request, turn, keeps_ids=keeps_ids)
        if isinstance(known, bytes):
            known = own.plain("m", request, known, raw) or await own.make(
                "m", request, known, raw=raw, turn=turn, keeps_ids=keeps_ids
            )
    except RequestError as error:
        return ("refused", error.status, error.message)
    prompt = known.prompt
    if prompt is None:
        return fields, known.reason
    ids = prompt.ids if keeps_ids else None
    return fields, prompt.blocks, prompt.block_tokens, prompt.tokens, ids


Writer = Callable[[list[dict[str, str]]], bytes]


def written(style: int, fields: dict[str, Any]) -> Writer:
    """A client's way to write a body."""

    def write(messages: list[dict[str, str]]) -> bytes:
        told = [dict(reversed(one.items())) for one in messages] if style & 1 else messages
        front = {"model": "m", "messages": told} if style & 2 else {"messages": told, "model": "m"}
        separators = (",", ":") if style & 4 else (", ", ": ")
        body = json.dumps(
            front | fields,
            ensure_ascii=bool(style & 8),
            separators=separators,
            indent=2 if style & 16 else None,
        )
        return body.encode()

    return write


def spelled(at: int) -> bytes:
    """The name of the messages, one of its letters as an escape."""
    name, place = "messages", at % 8
    digits = f"{ord(name[place]):04X}" if at & 8 else f"{ord(name[place]):04x}"
    return f'"{name[:place]}\\u{digits}{name[place + 1 :]}"'.encode()


def damaged(raw: bytes, how: int, at: int, last: bytes) -> bytes:
    """What a body may also look like. last: its last messages, as a list of their own."""
    match how:
        case 1:
            return raw[: at % len(raw)]
        case 2:
            return raw[:-1] + b', "messages": ' + last + b"}"
        case 3:
            return raw[:-1] + b", " + spelled(at) + b": " + last + b"}"
        case 4:
            said = last[1:-1].strip()
            end = raw.index(b"]", raw.rindex(said) + len(said))
            return raw[:end] + b"," + raw[end:]
        case 5:
            return raw + b" x"
        case 6:
            return raw.replace(b'"messages"', spelled(at))
        case 7:
            place = len(raw) - at % 900
            return raw[:place] + bytes([at % 256]) + raw[place:]
        case 8:
            return raw.replace(b'"content"', b'"content": "first", "content"')
        case _:
            return raw


def turns(count: int, word: str) -> list[dict[str, str]]:
    """A conversation of so many."""
    told = [{"role": "system", "content": PAD}]
    for turn in range(count):
        told.append({"role": "user", "content": f"{word} {turn}"})
        told.append({"role": "assistant", "content": f"as {word} {turn}"})
    return told


def system(more: str = "") -> dict[str, str]:
    """A system prompt of a short body."""
    return {"role": "system", "content": SHORT_PAD + more}


texts = st.sampled_from(TEXTS) | st.text(max_size=40)
changes = st.tuples(
    st.sampled_from(
        ["turn", "turn", "question", "again", "last", "middle", "drop", "role", "name"]
    ),
    st.tuples(texts, texts),
    st.sampled_from([0] * 4 + list(range(1, 9))),
    st.integers(0, 2**20),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.booleans(),
        "max_tokens": st.just(3),
        "tools": st.sampled_from([TOOLS, [*TOOLS, {"type": "function", "function": SENDS}]]),
        "cache_salt": st.sampled_from(["a", "b"]),
        "add_generation_prompt": st.booleans(),
    },
)


@pytest.mark.parametrize("name", ["demo", *ODD, *SHARED_NAMES])
@pytest.mark.timeout(240)
@MANY
@given(
    st.lists(changes, min_size=2, max_size=8),
    st.integers(0, 31),
    options,
    # Parts of bodies end before, in and behind the messages that change.
    st.sampled_from([0, 2 * BODY_PART_BYTES - len(PAD)]).flatmap(
        lambda most: st.integers(max(0, most - 1_000), most)
    ),
)
def test_nothing_tells_that_a_body_was_known(
    name: str, story: list[tuple[Any, ...]], style: int, fields: dict[str, Any], filler: int
) -> None:
    filled = {"role": "system", "content": PAD + "f" * filler}
    asyncio.run(compared(name, 0.0, filled, story, written(style, fields)))


@pytest.mark.parametrize("name", ["demo", *ODD])
@pytest.mark.timeout(240)
@MANY
@given(
    st.lists(changes, min_size=2, max_size=8), st.integers(0, 31), options, st.integers(0, 3_000)
)
def test_nothing_tells_that_an_opening_was_known(
    name: str, story: list[tuple[Any, ...]], style: int, fields: dict[str, Any], filler: int
) -> None:
    filled = system("f" * filler)
    asyncio.run(compared(name, 10.0, filled, story, written(style, fields)))


async def compared(
    name: str, hop_s: float, filled: dict[str, str], story: list[tuple[Any, ...]], write: Writer
) -> None:
    """Compare what services with and without caches make of a story. filled: its first message."""
    warm, cold = service(name, hop_s=hop_s), service(name, 0)
    # Trust in replicas, and so whether any ids are kept, comes and goes.
    keeps_ids = [at % 3 > 0 for *_, at in story]
    # A shape is known from its second conversation on.
    for count in range(5):
        for word in ("one", "two"):
            talk = [filled, *turns(count, word)[1:]]
            await read(warm, write(talk), keeps_ids=keeps_ids[0])
            asked = [*talk, {"role": "user", "content": word}]
            await read(warm, write(asked), keeps_ids=keeps_ids[-1])
    talk = [filled, *turns(2, "two")[1:]]
    for (change, (one, other), how, at), keeps in zip(story, keeps_ids, strict=True):
        match change:
            case "turn":
                talk += [
                    {"role": "user", "content": one},
                    {"role": "assistant", "content": other},
                ]
            case "question":
                talk.append({"role": "user", "content": one})
            case "last":
                talk[-1] = {**talk[-1], "content": talk[-1]["content"] + one}
            case "middle":
                place = at % len(talk)
                talk[place] = {**talk[place], "content": one + talk[place]["content"]}
            case "drop":
                del talk[1 + 2 * (at % 3) :]
            case "role":
                talk[-1] = {**talk[-1], "role": "tool" if at % 2 else "critic"}
            case "name":
                talk[-1] = {**talk[-1], "name": one}
        raw = write(talk)
        last = write(talk[-1 - at % 2 :])
        last = last[last.index(b"[") : last.rindex(b"}", 0, last.rindex(b"]")) + 1] + b"]"
        for body in (raw, damaged(raw, how, at, last)):
            # Whole, cut once, in three, or at the end of parts.
            cuts = [(), (at,), (at, at * 7919), (BODY_PART_BYTES, len(body))][at % 4]
            told = await read(warm, body, cuts, keeps_ids=keeps)
            assert told == await read(cold, body, keeps_ids=keeps)
    warm.close()
    cold.close()


SENDING = json.dumps({"tools": [SENDS]}).encode()[1:-1]


@pytest.mark.parametrize(
    ("front", "behind", "read"),
    [
        (b'{"messages":', b"}", True),
        (b'{"tools":"my \\u2014 \\"messages\\"", "messages" : ', b"}", True),
        (b"{%b," % SENDING + b'"messages":', b"}", True),
        (b'{"messages":', b",%b}" % SENDING, True),
        (b'{"messages":', b',"messages":[]}', False),
        (b'{"messages":', b',%b,"messages":[]}' % SENDING, False),
        (b'{"messages":[],%b,"messages":' % SENDING, b"}", True),
        (b'{"metadata":{"messages":', b'},"messages":[]}', False),
        (b'{"messages":[],"metadata":{"messages":', b"}}", False),
        (b'{"messages":', b',"messages":7}', False),
        (b'{"messages":', b',"metadata":{"messages":"%b"}}' % (b"x" * 262_144), False),
        # More levels than Python's json goes down in any version.
        (b'{"messages":', b',"a":%b"messages"%b}' % (b"[" * 30_000, b"]" * 30_000), False),
    ],
)  # fmt: skip
def test_whether_a_list_is_what_is_read_for_the_messages(
    front: bytes, behind: bytes, read: bool
) -> None:
    assert is_list_read(Kind.CHAT, front, behind) == read
    front, behind = (part.replace(b"messages", b"input") for part in (front, behind))
    assert is_list_read(Kind.RESPONSES, front, behind) == read


def test_a_name_may_be_spelled_with_escapes() -> None:
    for at in range(16):
        assert not is_list_read(Kind.CHAT, b'{"messages":', b"," + spelled(at) + b":[1]}")
        request = inspect(Kind.CHAT, b"{" + spelled(at) + b':[1],"model":"m"}')
        assert isinstance(request, ChatBody)
        assert bytes(request.messages) == b"[1]"


async def test_a_tool_may_have_a_property_named_messages() -> None:
    """Its conversation is known all the same, wherever the tools stand."""
    tools = {"tools": [{"type": "function", "function": SENDS}]}
    for style in (0, 2):
        own, write = service("demo"), written(style, tools)
        for body in (write(turns(2, "one")), b"{%b,%b" % (SENDING, write(turns(2, "two"))[1:])):
            for _ in range(2):
                await read(own, body)
            assert own.begun(Kind.CHAT, body) is not None
        own.close()


@pytest.mark.parametrize(
    "more", [",[]", ", [[]]", ",[ [] ]", ",[],[]", ",{}", ",0", ",", "[]", " "]
)
async def test_what_is_no_message_is_seen_behind_a_known_body(more: str) -> None:
    own, cold, write = service("demo"), service("demo", 0), written(0, {})
    for word in ("one", "two"):
        await read(own, write([*turns(2, word), {"role": "user", "content": word}]))
        await read(own, write(turns(2, word)))
    raw = write(turns(2, "two"))
    end = raw.rindex(b"]")
    raw = raw[:end] + more.encode() + raw[end:]
    told = await read(own, raw)
    assert told == await read(cold, raw)
    assert (own.begun(Kind.CHAT, raw) is not None) == more.isspace()
    own.close()
    cold.close()


async def test_a_turn_is_known_wherever_the_conversations_part() -> None:
    """By the second conversation of each length; a question asked otherwise, and the same again."""
    own = service("demo")
    hits = []
    for talk in range(3):
        said = [{"role": "system", "content": PAD}, {"role": "user", "content": f"talk {talk}"}]
        for turn in range(4):
            before = own.bodies.hits
            write = written(0, {"stream": True})
            for question in ("what", "what", "why"):
                raw = write([*said[:-1], {**said[-1], "content": f"{question} {talk}.{turn}"}])
                told = await read(own, raw)
                assert told == await read(service("demo", 0), raw)
            hits.append(own.bodies.hits - before)
            said[-1] = {"role": "user", "content": f"why {talk}.{turn}"}
            said += [
                {"role": "assistant", "content": f"because {talk}.{turn}"},
                {"role": "user", "content": ""},
            ]
    own.close()
    assert hits[4:] == [3] * 8
    counted = own.budgets.counts()["body"]
    assert counted.hits == own.bodies.hits
    assert 0 < counted.size_bytes <= own.budgets.body.limit_bytes


async def test_many_questions_about_one_document_keep_it_once() -> None:
    """What leaves a known body is kept once it is long; what goes on from it takes its place."""
    own, write = service("demo"), written(0, {})
    document = {"role": "system", "content": PAD}
    kept, hits = [], []
    # A shape is known from its second conversation on.
    for question in ("one", "two", "three", "four", "five", PAD):
        hits.append(own.bodies.hits)
        await read(own, write([document, {"role": "user", "content": question}]))
        kept.append(len(own.bodies))
    answered = [
        {"role": "user", "content": PAD},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "and"},
    ]
    await read(own, write([document, *answered]))
    own.close()
    assert hits[-1] - hits[2] == 3
    assert kept[2:-1] == [kept[1]] * 3
    assert kept[-1] == kept[1] + 1
    assert len(own.bodies) == kept[-1]


async def test_what_many_short_bodies_begin_with_is_kept_once() -> None:
    own, cold, write = service("demo", hop_s=10.0), service("demo", 0), written(0, {})
    known = []
    for number in range(8):
        raw = write([system(), {"role": "user", "content": f"question {number}"}])
        known.append(own.begun(Kind.CHAT, raw) is not None)
        assert await read(own, raw) == await read(cold, raw)
    own.close()
    cold.close()
    # Its shape and its opening are known from the second one on, which the next one shows.
    assert known == [False] * 3 + [True] * 5
    assert own.bodies.hits == 5
    assert len(own.bodies) == 1


@pytest.mark.parametrize("front", [b"{", b"{%b," % (b'"metadata":{"for":"%b"}' % (b"x" * 600))])
@pytest.mark.parametrize("at_end", [False, True])
async def test_openings_that_begin_alike_are_each_known(front: bytes, *, at_end: bool) -> None:
    own, cold, write = service("demo", hop_s=10.0), service("demo", 0), written(0, {})
    said = [{"role": "system", "content": f"{one} {SHORT_PAD}"} for one in range(4)]
    bodies = [
        front
        + write([system(f"of {one}") if at_end else said[one], {"role": "user", "content": ask}])[
            1:
        ]
        for ask in map(str, range(5))
        for one in range(4)
    ]
    # The last questions come again, when they are known by what follows the openings.
    for raw in bodies + bodies[-8:] * 3:
        assert await read(own, raw) == await read(cold, raw)
    assert all(own.begun(Kind.CHAT, raw) for raw in bodies)
    assert len(own.bodies) == 4
    own.close()
    cold.close()


async def test_an_opening_is_kept_for_one_salt() -> None:
    own, cold = service("demo", hop_s=10.0), service("demo", 0)
    for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        for number in range(6):
            raw = written(0, salt)([system(), {"role": "user", "content": f"ask {number}"}])
            assert await read(own, raw) == await read(cold, raw)
    assert own.bodies.hits == 3
    assert len(own.bodies) == 1
    own.close()
    cold.close()


def test_a_key_says_whose_ids_of_what_body_it_is() -> None:
    said = [
        tail_key(opening_seed(Kind.CHAT, own, opening), salt, tail)
        for own, opening in (("a", b"bc"), ("ab", b"c"), ("a", b"bd"))
        for salt, tail in ((b"a", b"bc"), (b"ab", b"c"), (b"a", b"bd"))
    ]
    assert len(set(said)) == len(said)


async def test_a_short_body_that_comes_again_is_not_read_again() -> None:
    """From the third time on, for the ids too once they were made."""
    own, cold, write = service("demo", hop_s=10.0), service("demo", 0), written(0, {})
    for number in range(5):
        await read(own, write([system(), {"role": "user", "content": f"question {number}"}]))
    salted = [written(0, {"cache_salt": salt}) for salt in "ab"]
    raws = [one([system(), {"role": "user", "content": "again"}]) for one in (write, *salted)]
    hits = []
    for keeps_ids in [False] * 4 + [True] * 4:
        for raw in raws:
            told = await read(own, raw, keeps_ids=keeps_ids)
            assert told == await read(cold, raw, keeps_ids=keeps_ids)
        hits.append(own.bodies.hits)
    own.close()
    cold.close()
    # An opening is known under one salt. The others' prompts are in the cache of whole requests.
    assert [after - before for before, after in pairwise(hits)] == [1, 0, 0, 1, 0, 0, 0]


async def test_what_bodies_have_in_common_is_in_memory_once() -> None:
    """Also where the later one is read as a whole, for its ids."""
    own, write = service("demo"), written(0, {})
    document = {"role": "system", "content": PAD * 9}
    bodies = [
        write([document, {"role": "user", "content": f"ask {number}"}]) for number in range(3)
    ]
    count = len(bodies[0]) // BODY_PART_BYTES

    def known(number: int) -> bytes | None:
        end = BODY_PART_BYTES * (number + 1)
        return own.bodies.part(bodies[0][end - NAME_BYTES : end], number)

    held: list[list[bytes | None]] = []
    for raw in bodies:
        await read(own, raw, keeps_ids=raw is bodies[2])
        held.append([known(number) for number in range(count)])
    own.close()
    assert own.bodies.hits == 1
    assert count > 1
    assert b"".join(part for part in held[1] if part) == bodies[0][: BODY_PART_BYTES * count]
    assert list(map(id, held[2])) == list(map(id, held[1]))


async def test_bodies_that_end_alike_are_each_known() -> None:
    """As what tools answer does."""
    own, write = service("demo"), written(0, {})
    ending = {"role": "user", "content": "exit code 0\n" * NAME_BYTES}
    talks = [[{"role": "system", "content": "f" * number + PAD}, ending] for number in range(3)]
    for talk in talks:
        await read(own, write(talk))
    more = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "go on"}]
    turns = [own.begun(Kind.CHAT, write(talk + more)) for talk in talks]
    own.close()
    assert [turn and turn.mark.messages for turn in turns] == [2, 2, 2]


async def test_bodies_that_differ_at_their_beginning_alone_are_each_known() -> None:
    """As those of agents whose long instructions name a day or a user first: what they have in
    common has the same place in each, and the same names."""
    own, write = service("demo"), written(0, {})
    talks = [
        [{"role": "system", "content": f"user {one}" + 3 * PAD}, {"role": "user", "content": one}]
        for one in "abc"
    ]
    more = [{"role": "assistant", "content": "so"}, {"role": "user", "content": 3 * PAD}]
    for talk in talks:
        await read(own, write(talk))
    whole_turns = [own.begun(Kind.CHAT, write(talk + more)) for talk in talks]
    in_pieces = [
        own.begun(Kind.CHAT, arrived(own, write(talk + more), [700, 70_000])) for talk in talks
    ]
    own.close()
    assert [turn and turn.mark.messages for turn in whole_turns + in_pieces] == [2] * 6


async def test_ids_are_kept_where_somebody_gets_them() -> None:
    own, write, hits = service("demo"), written(0, {}), []
    document = {"role": "system", "content": PAD}
    for number, keeps_ids in enumerate([False] * 4 + [True] * 3):
        raw = write([document, {"role": "user", "content": f"question {number}"}])
        hits.append(own.bodies.hits)
        told = await read(own, raw, keeps_ids=keeps_ids)
        assert told == await read(service("demo", 0), raw, keeps_ids=keeps_ids)
    hits.append(own.bodies.hits)
    own.close()
    known = [after - before for before, after in pairwise(hits)]
    # What was kept without ids is read as a whole once more.
    assert known[2:] == [1, 1, 0, 1, 1]


async def test_a_body_counts_its_residual() -> None:
    """With one wide letter each letter of a text takes four bytes, of a body one."""
    own = service("demo")
    system = {"role": "system", "content": PAD}
    for number in range(5):
        tools = [
            {"type": "function", "function": {"name": f"f{number}", "description": "🙂" + PAD}}
        ]
        for said in "abc":
            await read(
                own, written(0, {"tools": tools})([system, {"role": "user", "content": said}])
            )
    kept = list(own.bodies._items.values())
    assert len(kept) >= 5
    shown = {id(part): part for body in kept for part in body.residual.parts}
    texts_bytes = sum(getsizeof(part) for part in shown.values() if isinstance(part, str))
    bodies_bytes = sum(sum(map(len, body.parts)) for body in kept)
    assert own.budgets.counts()["body"].size_bytes > texts_bytes + bodies_bytes
    own.close()


async def test_it_is_forgotten_with_the_size_of_blocks() -> None:
    own = service("demo")
    write, raw = written(0, {}), b""
    for said in "abc":
        raw = write([{"role": "system", "content": PAD}, {"role": "user", "content": said}])
        await read(own, raw)
    assert own.begun(Kind.CHAT, raw) is not None
    own.rehash(32)
    assert own.begun(Kind.CHAT, raw) is None
    assert own.budgets.counts()["body"].size_bytes == 0
    own.close()


@pytest.mark.parametrize(
    ("parts", "ends"),
    [
        ((), []),
        (("a", 0, "b", 1, "c"), [(2, 1), (4, 2)]),
        ((0, 1), [(1, 1), (2, 2)]),
        ((0, "again", 0, 1), [(3, 1), (4, 2)]),
        ((1, 0), []),
        ((2, 0, 1), []),
        ((0, 2, 1, 3), [(1, 1), (4, 4)]),
        ((0, 1, 0), []),
        ((1, "only"), [(1, 2)]),
    ],
)
def test_where_messages_end(parts: tuple[str | int, ...], ends: list[tuple[int, int]]) -> None:
    assert message_ends(parts, range(4)) == ends
    # The second text and the third are of one message, and of a conversation that goes on.
    later = tuple([part + 7 if isinstance(part, int) else part for part in parts])
    assert message_ends(later, range(4), 7) == ends


THINKS = Guard("__contains__", ("</think>",), False, (0, 1))


@pytest.mark.parametrize(
    ("new", "behind"),
    [
        (Residual(("a", 0, "b", 1, "c", 2)), ("c", 2)),
        (Residual(("A", 0, "b", 1, "c", 2)), None),
        (Residual(("a", 0, "b", 1, "c", 0)), None),
        (Residual(("a", 0, "b", 1, 2), (THINKS._replace(texts=(0, 1, 2)),)), (2,)),
        (Residual(("a", 0, "b", 1, 2), (THINKS._replace(holds=True),)), None),
        (Residual(("a", 0, "b", 1, 2), (THINKS._replace(words=("x",)),)), None),
        (Residual(("a", 0, "b", 1, 2), (THINKS._replace(words=("x",), texts=(2,)),)), (2,)),
    ],
)
def test_how_a_residual_goes_on(new: Residual, behind: tuple[str | int, ...] | None) -> None:
    way = continuation(Residual(("a", 0, "b", 1, "end"), (THINKS,)), new, 4, 0, 2)
    assert (None if way is None else way.parts) == behind
    assert way is None or all(min(guard.texts) >= 2 for guard in way.guards)


def test_what_was_asked_of_two_residuals_is_told_again() -> None:
    ways, old = Continuations(), Residual(("a", 0, "b", 1))
    new = Residual(("a", 0, "b", 1, "c", 2))
    first = ways.of(old, new, 4, 0, 2)
    assert first == continuation(old, new, 4, 0, 2)
    assert ways.of(old, new, 4, 0, 2) is first
    # Equal ones are others, and others may have taken their place in memory.
    assert ways.of(Residual(old.parts), new, 4, 0, 2) is not first
    assert ways.of(old, new, 2, 0, 1) == continuation(old, new, 2, 0, 1)


def test_answers_about_residuals_are_bounded() -> None:
    ways, long = Continuations(), Residual(("a" * 2_000_000, 0))
    for number in range(1_000):
        ways.of(Residual(("a", number)), Residual(("a", number, "b")), 2, 0, number + 1)
    ways.of(long, long, 2, 0, 1)
    assert 0 < len(ways._known) <= 64
    assert all(old is not long for old, _, _ in ways._known.values())
    for number in range(200):  # what a template shows of many tools
        tools = f"{number} " + "t" * 60_000
        old = Residual((tools, 0))
        first = ways.of(old, Residual((tools, 0, "b", 1)), 2, 0, 1)
        assert first is not None
        known = {id(one): one for pair in ways._known.values() for one in pair[:2]}
        assert 0 < sum(one.size_bytes for one in known.values()) <= 3_000_000


@pytest.mark.parametrize(
    "behind",
    [
        ', "messages": [{"role": "user", "content": "new"}]}',
        ', "\\u006dessages": [{"role": "user", "content": "new"}]}',
        ', "metadata": {"messages": []}, "messages": [{"role": "user", "content": "new"}]}',
        ', "stream": NaN}',
        ', "stream": true',
    ],
)
async def test_what_may_mean_another_conversation_is_read_whole(behind: str) -> None:
    own, cold, write = service("demo"), service("demo", 0), written(0, {})
    for word in ("one", "two"):
        await read(own, write([*turns(2, word), {"role": "user", "content": word}]))
        await read(own, write(turns(2, word)))
    raw = write([*turns(2, "two"), {"role": "user", "content": "new"}])
    assert own.begun(Kind.CHAT, raw) is not None
    other = raw[:-1] + behind.encode()
    assert own.begun(Kind.CHAT, other) is None
    assert await read(own, other) == await read(cold, other)
    own.close()
    cold.close()

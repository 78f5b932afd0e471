"""Many questions about one document: a body is known up to where its text leaves an earlier one's,
and nothing tells that it was."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.models import SHARED_NAMES
from tests.tokens.test_dialect_turns import DIALECTS
from tests.tokens.test_next_turn import ODD, arrived, damaged, read, service, texts
from tokenlane.protocols.bodies import Kind
from tokenlane.tokens.service import TokenService

ASKED = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(8))
LINES = ["word after word ", 'say "so", \\ and\nmore ', "é und ü 🧵 ", "so  it <|im_end|> ", "x\n"]
DOCUMENT_CHARS = 70_000
ROOMY_BYTES = 512 << 20
Talk = list[dict[str, Any]]


def document(line: str, more: int = 0) -> str:
    """A text of which more than a part of a body is known."""
    return "d" * more + line * (DOCUMENT_CHARS // len(line))


def spelled(kind: Kind, said: Talk, style: int) -> bytes:
    """A client's way to write a body."""
    fields = DIALECTS[kind](said, {}) if kind in DIALECTS else {"messages": said}
    return json.dumps(
        {"model": "m", **fields} if style & 1 else {**fields, "model": "m"},
        ensure_ascii=bool(style & 2),
        separators=(",", ":") if style & 4 else (", ", ": "),
    ).encode("utf-8", "surrogatepass")


def asking(text: str, *more: dict[str, Any], **fields: Any) -> Talk:
    """A conversation that begins with a document."""
    user = {"role": "user", "content": text, **fields}
    return [{"role": "system", "content": "Answer."}, user, *more]


async def marked(
    own: TokenService, kind: Kind, raw: bytes, cuts: tuple[int, ...]
) -> tuple[int, int] | None:
    """Return where a body leaves the text of a known one, and how much of it is read. cuts: where
    its pieces end; none for one that came whole."""
    turn = own.begun(kind, arrived(own, raw, cuts) if cuts else raw)
    return (turn.mark.at, len(turn.tail)) if turn is not None and turn.mark.opening else None


@pytest.mark.parametrize("kind", [Kind.CHAT, *DIALECTS], ids=str)
@pytest.mark.parametrize("style", range(8))
@pytest.mark.parametrize("line", LINES[:3])
async def test_a_document_is_read_once(line: str, style: int, kind: Kind) -> None:
    own, cold = service("demo", ROOMY_BYTES), service("demo", 0)
    for question, more in (
        ("what?", []),
        ("why?", []),
        ("when? " * 9, []),
        ("so?", [{"role": "assistant", "content": "as"}, {"role": "user", "content": "and?"}]),
    ):
        raw = spelled(kind, asking(document(line) + question, *more), style)
        cuts = (len(raw) - 1,) if style % 3 else ()
        known = await marked(own, kind, raw, cuts)
        assert (known is not None) == (question != "what?")
        assert known is None or known[1] < 30_000
        assert await read(own, raw, cuts, kind=kind) == await read(cold, raw, kind=kind)
    assert own.bodies.hits == 3
    own.close()
    cold.close()


@pytest.mark.parametrize("name", [one for one in SHARED_NAMES if one == "qwen3"])
async def test_also_where_a_template_asks_how_the_text_begins_and_ends(name: str) -> None:
    own, cold = service(name, ROOMY_BYTES), service(name, 0)
    for begin, end in (("", "?"), ("", "!"), ("<tool_response>", "?"), ("<tool_response>", "!")):
        for last in ("", "</tool_response>"):
            raw = spelled(Kind.CHAT, asking(begin + document(LINES[0]) + end + last), 0)
            assert await read(own, raw, (len(raw) - 1,)) == await read(cold, raw)
    assert own.bodies.hits > 2
    own.close()
    cold.close()


# Instead of the end of a text, where {} is that.
AGAIN = [
    '{}", "content": "other"',
    '{}", "content": "{}"',
    '{}", "content": ["a"]',
    '{}", "role": "assistant"',
    '{}", "name": "bo"',
    '{}", "messages": []',
    '{}"}, {"role": "user", "content": "{}"',
    '{}" "',
    '{}\\ud83d"',
    '{}\n"',
]


@pytest.mark.parametrize("instead", AGAIN)
@pytest.mark.parametrize("cut", [0, 1, 9, 5_000])
async def test_what_stands_behind_the_text_may_change_what_it_says(instead: str, cut: int) -> None:
    """A field that is repeated, or something that is no text."""
    own, cold, text = service("demo", ROOMY_BYTES), service("demo", 0), document(LINES[0])
    for question in ("what?", "why?"):
        await read(own, spelled(Kind.CHAT, asking(text + question), 0))
    kept = text[: len(text) - cut]
    raw, end = spelled(Kind.CHAT, asking(kept + "END"), 0), kept[-100:] + "END"
    changed = raw.replace(f'{end}"'.encode(), instead.replace("{}", end).encode(), 1)
    assert changed != raw
    cuts = (len(changed) - 1,)
    assert await read(own, changed, cuts) == await read(cold, changed)
    own.close()
    cold.close()


Asked = tuple[int, str, str, int, int]


@pytest.mark.parametrize("name", ["demo", *ODD, *SHARED_NAMES])
@pytest.mark.timeout(240)
@ASKED
@given(
    st.sampled_from(LINES),
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 7, 100, 4_096, 9_000, 40_000]),
            texts,
            st.sampled_from(["", "", "turn", "name", "role", "parts", "two", "before", "thought"]),
            st.sampled_from([0] * 4 + list(range(1, 9))),
            st.integers(0, 2**20),
        ),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([Kind.CHAT, Kind.CHAT, *DIALECTS]),
    st.integers(0, 7),
    st.integers(0, 4_096),
)
# Of a body that many know, fewer parts may be known than stand before its mark.
@example(
    LINES[0],
    [(0, "a", "name", 0, 3), (9_000, "a", "turn", 0, 3), (0, "", "name", 0, 3)],
    Kind.CHAT,
    0,
    13,
)
def test_nothing_tells_that_a_document_was_known(
    name: str, line: str, story: list[Asked], kind: Kind, style: int, more: int
) -> None:
    async def told() -> None:
        warm, cold, text = service(name, ROOMY_BYTES), service(name, 0), document(line, more)
        for question in ("what?", "why?"):
            raw = spelled(kind, asking(text + question), style)
            await read(warm, raw, (len(raw) - 1,), kind=kind)
        for cut, question, how, damage, at in story:
            content = text[: len(text) - cut] + question
            said = asking(content)
            match how:
                case "turn":
                    said += [{"role": "assistant", "content": question}, said[-1]]
                case "name":
                    said[-1] = {"role": "user", "name": "bo", "content": content}
                case "role":
                    said[-1]["role"] = "assistant"
                case "parts" | "two":
                    ends = [text[:9_000], content[9_000:]] if how == "two" else [content]
                    said[-1]["content"] = [{"type": "text", "text": one} for one in ends]
                case "before":
                    said.insert(1, {"role": "user", "content": question})
                case "thought":
                    said[-1] = {"role": "assistant", "content": content, "reasoning": content}
            raw = spelled(kind, said, style)
            last = b'[{"role": "user", "content": "last"}]'
            for body in (raw, damaged(raw, damage, at, last) if damage != 4 else raw):
                seen = await read(warm, body, (at, len(body) - 1) if at % 3 else (), kind=kind)
                assert seen == await read(cold, body, kind=kind)
        warm.close()
        cold.close()

    asyncio.run(told())

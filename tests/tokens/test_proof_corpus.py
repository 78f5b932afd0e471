"""What replicas are asked: everything that a proof has to have, another each time."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_tokenizer
from tests.tokens.models import folder_with
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.fleet_state import IdKind
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens import proof_corpus
from tokenlane.tokens.proof_corpus import RUN_TOKENS, categories, requests, runs, texts
from tokenlane.tokens.tokenizer import Tokenizer


def all_texts(seed: int) -> str:
    return "\n".join(texts(demo_tokenizer().encoder, Random(seed)))


def test_texts_have_every_added_token_and_every_category() -> None:
    whole = all_texts(1)
    for token in demo_tokenizer().encoder.added:
        assert f"a{token}b" in whole
    for characters in categories().values():
        assert not set(characters).isdisjoint(whole)
    assert len(whole) < 64 * 1024
    assert all_texts(1) == whole != all_texts(2)


@given(st.integers(0, 1000))
def test_runs_go_through_the_vocabulary_once(seed: int) -> None:
    encoder = demo_tokenizer().encoder
    size = encoder.vocabulary_size
    beyond, *inside = runs(encoder, Random(seed))
    assert min(beyond) == size
    assert sorted(one for run in inside for one in run) == list(range(size))
    assert max(map(len, inside)) <= RUN_TOKENS
    assert sum(abs(b - a) == 1 for run in inside for a, b in pairwise(run)) == 0


def rendered(kind: IdKind, tokenizer: Tokenizer | None = None) -> list[dict[str, Any]]:
    tokenizer = tokenizer or demo_tokenizer()
    good = []
    for fields in requests(tokenizer, kind, Random(3)):
        try:
            fields_of = msgspec.json.decode(msgspec.json.encode(fields), type=ChatFields)
            tokenizer.chat_ids(fields_of)
        except (RequestError, Unrenderable):
            continue
        good.append(fields)
    return good


@pytest.mark.parametrize(
    ("kind", "field"),
    [(IdKind.CHAT, "messages"), (IdKind.TOOLS, "tools"), (IdKind.OPTIONS, "messages")],
)
def test_chats_of_each_kind_can_be_rendered(kind: IdKind, field: str) -> None:
    found = rendered(kind)
    assert len(found) >= 4
    assert all(field in one for one in found)


def test_every_variable_of_the_template_is_tried() -> None:
    tried = [one.get("chat_template_kwargs") for one in rendered(IdKind.OPTIONS)]
    assert {"enable_thinking": False} in tried
    assert {"enable_thinking": True} in tried
    assert not list(requests(demo_tokenizer(), IdKind.DIALECT, Random(1)))
    assert proof_corpus.RUN_TOKENS == 1024


def test_documents_are_tried_where_the_template_reads_them(tmp_path: Path) -> None:
    source = (
        "{% for d in documents or [] %}{{ d.title }}: {{ d.text }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer = Tokenizer.load("m", folder_with(tmp_path / "m", chat_template=source))
    tried = [one["documents"] for one in rendered(IdKind.OPTIONS, tokenizer) if "documents" in one]
    assert [len(documents) for documents in tried] == [1, 2]
    assert not any("documents" in one for one in rendered(IdKind.OPTIONS))

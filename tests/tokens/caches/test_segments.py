"""The segment cache against a model of one, and texts cut into stretches."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from tests.support import demo_tokenizer
from tests.tokens.encode.pieces import pieces_of
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.segments import SegmentCache, stretches
from tokenlane.tokens.encode.encoder import Encoder

TEXTS = st.lists(st.sampled_from(["<|im_end|>", "<think>", "word ", "<", "x" * 9000]), max_size=40)


@given(TEXTS, st.integers(0, 500))
def test_stretches_are_the_pieces(parts: list[str], skip: int) -> None:
    encoder = demo_tokenizer().encoder
    text = "".join(parts)
    starts = encoder.starts(text)
    at = starts[skip % len(starts)] if starts else 0
    made = [one for found in stretches(encoder, text, at) for one in zip(*found, strict=True)]
    assert [piece for _, piece in made] == (
        [] if at == len(text) else pieces_of(encoder, text[at:])
    )
    assert all(text.startswith(piece, start) for start, piece in made)


@pytest.mark.parametrize(
    ("tokens", "anywhere"),
    [(["<a>", "<b>"], True), (["ab", "bc"], False), (["\n", "\n\n"], False), (["x"], True)],
)
@given(text=st.text("abcx<>\n", max_size=40), begin=st.integers(0, 40), until=st.integers(0, 40))
def test_where_a_search_may_begin(
    tokens: list[str], anywhere: bool, text: str, begin: int, until: int
) -> None:
    backend = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    backend.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    encoder = Encoder(backend)
    assert encoder.cuts_anywhere == anywhere
    whole = encoder.starts(text)
    assert encoder.starts(text, 0, until) == [at for at in whole if at < until]
    for at in whole:
        assert encoder.starts(text, at) == [other for other in whole if other >= at]
    if anywhere:
        assert encoder.starts(text, begin, until) == [at for at in whole if begin <= at < until]


@pytest.mark.parametrize("offset", range(-12, 3))
def test_a_cut_is_found_wherever_a_search_pauses(offset: int) -> None:
    """Long texts are searched 64 Ki characters at a time."""
    encoder = demo_tokenizer().encoder
    token = "<|im_start|>"
    front = "x" * (64 * 1024 + offset)
    text = f"{front}{token}{token} and {front}{token}"
    first, second = len(front), len(front) + len(token)
    last = len(text) - len(token)
    assert encoder.starts(text) == [first, second, last]
    assert encoder.starts(text, first, last) == [first, second]
    assert encoder.starts(text, second) == [second, last]


NAMES = ["a", "bb" * 50, "c" * 400, "dé中", "e" * 3000]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=40))
def test_it_forgets_the_least_recently_used(operations: list[tuple[str, bool]]) -> None:
    cache = SegmentCache(Budget(limit_bytes=1800, entry_limit_bytes=1500))
    model: OrderedDict[str, bytes] = OrderedDict()
    hits = misses = 0
    for name, put in operations:
        if put:
            cache.put([name], [name.encode()])
            if len(name) < 1000 and name not in model:
                model[name] = name.encode()
        else:
            known = model.get(name)
            assert cache.get([name]) == [known]
            hits, misses = hits + (known is not None), misses + (known is None)
            if known is not None:
                model.move_to_end(name)
        while len(cache) < len(model):
            model.popitem(last=False)
        assert list(cache._items) == list(model)
        assert cache.size_bytes <= 1800
    assert (cache.hits, cache.misses) == (hits, misses)

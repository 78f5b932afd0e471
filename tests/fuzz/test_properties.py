"""Every property on its seeds, and on what becomes of them by a few mutations."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import whole
from tests.fuzz.corpus import kept
from tests.fuzz.mutations import PREFIXES, mutated
from tests.fuzz.properties import PROPERTIES
from tests.fuzz.seeds import seeds

TOKENS = [
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b",", b";", b"0", b"5", b"chunked", b"\xff",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"Host: y\r\n", b"{",
    b"}", b"[", b'"', b"\\", b"null", b"1e999", b"data: ", b"[DONE]", b'"usage":{', b'"error":',
    b"- ", b"? ", b"&a ", b"*a", b"!!python/name:os.system", b"0000-00-00", b"HTTP/1.1", b"//",
    b"\xef\xbb\xbf", b"!!int ",
]  # fmt: skip
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "double", "cut"]),
        st.floats(0, 1),
        st.sampled_from(TOKENS) | st.binary(min_size=1, max_size=4),
    ),
    max_size=4,
)


def changed(data: bytes, mutations: list[tuple[str, float, bytes]]) -> bytes:
    """`data` after these, each at its place."""
    for how, where, piece in mutations:
        at = int(where * len(data))
        size = len(piece)
        if how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "replace":
            data = data[:at] + piece + data[at + size :]
        elif how == "delete":
            data = data[:at] + data[at + size :]
        elif how == "double":
            data = data[: at + size * 8] + data[at:]
        else:
            data = data[:at]
    return data


@pytest.fixture(scope="module", autouse=True)
def scenes() -> Iterator[None]:
    yield
    whole.close()


@pytest.mark.row("H17")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in PREFIXES)) for name in PROPERTIES],
)
def test_seeds(name: str) -> None:
    for seed in seeds(name):
        PROPERTIES[name](seed)


@pytest.mark.row("H17")
@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
@settings(max_examples=60)
@given(data=st.data())
def test_mutations(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(seeds(name)) | st.binary(max_size=100))
    PROPERTIES[name](changed(seed, data.draw(MUTATIONS)))


@pytest.mark.row("H17")
@pytest.mark.slow
@pytest.mark.parametrize("name", PREFIXES)
def test_what_searches_found(name: str) -> None:
    assert kept(name)
    for data in kept(name):
        PROPERTIES[name](data)


@pytest.mark.row("H17")
@pytest.mark.slow
@pytest.mark.parametrize("name", PREFIXES)
@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 32))
def test_changes_that_know_what_they_change(name: str, seed: int) -> None:
    beginning = random.Random(seed).choice([*seeds(name), *kept(name)])
    PROPERTIES[name](mutated(name, beginning, seed))

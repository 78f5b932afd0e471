"""Block hashes: equal exactly where the prefixes are, separate where they must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tokenlane.tokens import blocks, xxh3
from tokenlane.tokens.blocks import TEXT_BYTES_PER_TOKEN, block_hashes, text_hashes

PAYLOADS = st.binary(max_size=600).map(lambda raw: raw[: len(raw) // 4 * 4])
SIZES = st.sampled_from([1, 2, 16])


def cut(packed: bytes) -> list[bytes]:
    return [packed[at : at + 8] for at in range(0, len(packed), 8)]


def common(left: list[bytes], right: list[bytes]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@given(PAYLOADS, SIZES)
def test_one_hash_for_each_full_block(ids: bytes, block_tokens: int) -> None:
    assert len(block_hashes(ids, block_tokens)) == len(ids) // (4 * block_tokens) * 8


@given(PAYLOADS, PAYLOADS, PAYLOADS, SIZES)
def test_hashes_agree_exactly_as_far_as_the_blocks_do(
    head: bytes, left: bytes, right: bytes, block_tokens: int
) -> None:
    size = 4 * block_tokens
    one, other = head + left, head + right
    blocks = [
        [ids[at : at + size] for at in range(0, len(ids) // size * size, size)]
        for ids in (one, other)
    ]
    hashes = [cut(block_hashes(ids, block_tokens)) for ids in (one, other)]
    assert common(*hashes) == common(*blocks)
    # Chained: after the first difference nothing agrees, even where single blocks do.
    start = common(*blocks)
    assert not set(hashes[0][start:]) & set(hashes[1][start:])


@given(st.binary(max_size=64 * 70), st.sampled_from([1, 8, 15, 16, 17, 32]), st.binary())
def test_each_is_the_xxh3_of_its_block_and_the_one_before(
    payload: bytes, block_tokens: int, salt: bytes
) -> None:
    """The same whoever makes them: plain and compiled builds name prefixes alike."""
    size = 4 * block_tokens
    ids = payload[: len(payload) // 4 * 4]
    before, expected = xxh3_64_intdigest(b"ids:%d:%s" % (size, salt)), []
    for at in range(0, len(ids) // size * size, size):
        before = xxh3_64_intdigest(ids[at : at + size], before)
        expected.append(before)
    assert list(memoryview(block_hashes(ids, block_tokens, salt)).cast("Q")) == expected
    end = len(ids) // 2
    half = block_hashes(ids, block_tokens, salt, b"", end)
    assert block_hashes(ids[:end], block_tokens, salt) == half
    assert block_hashes(ids, block_tokens, salt, half) == block_hashes(ids, block_tokens, salt)


def test_the_compiled_build_makes_them_itself() -> None:
    assert blocks.__file__.endswith(".so") == xxh3.NATIVE


@given(st.integers(0, 200))
def test_batches_do_not_show(blocks: int) -> None:
    ids = bytes(range(256)) * 4 * 16
    whole = block_hashes(ids, 1)
    assert block_hashes(ids[: 4 * blocks], 1) == whole[: 8 * blocks]


@given(PAYLOADS, st.integers(0, 150), SIZES)
def test_a_chain_goes_on_from_what_is_known(ids: bytes, tokens: int, block_tokens: int) -> None:
    known = block_hashes(ids[: 4 * tokens], block_tokens, b"salt")
    whole = block_hashes(ids, block_tokens, b"salt")
    assert block_hashes(ids, block_tokens, b"salt", known) == whole


def test_a_tail_that_fills_no_block_changes_nothing() -> None:
    ids = bytes(range(128))
    assert block_hashes(ids + bytes(60), 16) == block_hashes(ids, 16)
    assert block_hashes(bytes(60), 16) == b""
    assert block_hashes(b"", 16) == b""


def test_domains_sizes_and_salts_never_meet() -> None:
    payload = bytes(4096)
    chains = [
        block_hashes(payload, 16),
        block_hashes(payload, 32),
        block_hashes(payload, 16, b"tenant"),
        block_hashes(payload, 16, b"tenant2"),
        text_hashes(payload, 16),
        text_hashes(payload, 32),
        text_hashes(payload, 16, b"tenant"),
        text_hashes(payload, 16, b"ids"),
    ]
    hashes = [one for chain in chains for one in cut(chain)]
    assert len(set(hashes)) == len(hashes)


def test_text_has_the_shape_of_ids_and_a_limit() -> None:
    text = bytes(range(256)) * 8
    assert len(text_hashes(text, 16)) == len(text) // (16 * TEXT_BYTES_PER_TOKEN) * 8
    assert text_hashes(text, 16, limit_bytes=512) == text_hashes(text, 16)[: 8 * 8]
    assert text_hashes(text[:512] + b"another end", 16) == text_hashes(text, 16)[: 8 * 8]


@pytest.mark.parametrize("hashes", [block_hashes, text_hashes])
def test_a_block_has_at_least_one_token(hashes: object) -> None:
    assert callable(hashes)
    with pytest.raises(ValueError, match="at least 1"):
        hashes(b"", 0)

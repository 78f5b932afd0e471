"""Prompts for routing tests: chained hashes made from short words, cheap and readable."""

from collections.abc import Sequence

from hypothesis import strategies as st

from tokenlane.tokens.blocks import block_hashes


def chain(blocks: Sequence[int], salt: str = "") -> bytes:
    """Hashes of a prompt whose block i has the content `blocks[i]` (one token each)."""
    ids = b"".join(block.to_bytes(4, "little") for block in blocks)
    return block_hashes(ids, 1, salt.encode())


def long_prompt(name: int, blocks: int) -> list[int]:
    """A prompt of its own, with as many blocks."""
    return [name] * blocks


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Prompts that share prefixes often, with lengths around the run grid."""
    prompt: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        prompt += long_prompt(
            draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 5, 30, 31, 32, 33, 64, 70]))
        )
    return prompt

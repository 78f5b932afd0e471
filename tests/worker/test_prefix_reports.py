"""What a worker says of its own routing: together, and not again and again."""

import asyncio

import pytest

from tokenlane.worker import prefix_reports
from tokenlane.worker.prefix_reports import MESSAGE_BYTES, TOLD_COUNT, PrefixReports

Prefix = tuple[int, bytes, str]


class Told:
    """Messages to the supervisor, and an event for the next one. taken: whether it keeps up."""

    def __init__(self) -> None:
        self.taken = True
        self.messages: list[list[Prefix]] = []
        self.came = asyncio.Event()

    def add(self, prefixes: list[Prefix]) -> bool:
        self.messages.append(prefixes)
        self.came.set()
        return self.taken

    async def next(self) -> list[Prefix]:
        """The next message."""
        async with asyncio.timeout(20):
            await self.came.wait()
        self.came.clear()
        return self.messages[-1]


def blocks(number: int, count: int = 2) -> bytes:
    """Of a prompt of its own."""
    return b"".join((1000 * number + at).to_bytes(8, "little") for at in range(count))


async def test_what_comes_together_is_told_together_and_in_order() -> None:
    told = Told()
    reports = PrefixReports(told.add)
    sent = [(0, blocks(1), "alice"), (1, blocks(2), ""), (0, blocks(2), "")]
    for one in sent:
        reports.routed(*one)
    assert not told.messages
    assert await told.next() == sent
    reports.routed(2, blocks(3), "")
    assert await told.next() == [(2, blocks(3), "")]


async def test_what_was_told_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_reports, "AGAIN_S", 0.1)
    told = Told()
    reports = PrefixReports(told.add)
    again = (0, blocks(1), "")
    async with asyncio.timeout(20):
        while len(told.messages) < 2:
            reports.routed(*again)
            await asyncio.sleep(0)
    assert told.messages == [[again], [again]]


async def test_what_was_not_taken_was_not_told() -> None:
    told = Told()
    told.taken = False
    reports = PrefixReports(told.add)
    again = (0, blocks(1), "")
    for _ in range(2):
        reports.routed(*again)
        assert await told.next() == [again]
    told.taken = True
    reports.routed(*again)
    assert await told.next() == [again]
    reports.routed(*again)
    reports.routed(1, blocks(2), "")
    assert await told.next() == [(1, blocks(2), "")]


async def test_a_prompt_without_a_whole_block_is_not_told() -> None:
    told = Told()
    reports = PrefixReports(told.add)
    reports.routed(0, b"", "")
    reports.routed(0, blocks(1), "")
    assert await told.next() == [(0, blocks(1), "")]


async def test_a_message_has_a_size_and_what_is_remembered_a_count() -> None:
    told = Told()
    reports = PrefixReports(told.add)
    count = MESSAGE_BYTES // (8 * 1024)
    for number in range(count):
        reports.routed(0, blocks(number, 1024), "")
    assert [len(message) for message in told.messages] == [count]
    for number in range(TOLD_COUNT):
        reports.routed(1, blocks(number), "")
    reports.routed(0, blocks(0, 1024), "")  # forgotten meanwhile
    told.came.clear()
    assert (await told.next())[-1] == (0, blocks(0, 1024), "")

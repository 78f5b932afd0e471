"""The tour in docs/architecture.md names the files that run for a request, in their order."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import tokenlane.gateway.request
from tests.paths import ROOT
from tests.raw import CHAT, EVENTS, USAGE, Upstream, answering, chat, post, stream
from tests.support import demo_tokenizer, gateway
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.telemetry.load_board import SharedBoard, create_board

PACKAGE = Path(tokenlane.__file__).parent
PAGE = ROOT / "docs" / "architecture.md"
# A chat that hits the cache: its ids, its replica and the shape of its head are known already.
FILES_LIMIT = 45


def toured() -> list[str]:
    """Return the files that the tour names, in order, each once."""
    text = PAGE.read_text(encoding="utf-8").split("## The life of a request")[1].split("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"`([a-z_/]+\.py)`", text)))


async def traced() -> list[str]:
    """Return the files that run for the third of three equal streamed chats, by first call."""
    files: dict[str, None] = {}

    def called(frame: FrameType, kind: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if kind == "call" and path.is_relative_to(PACKAGE):
            files[path.relative_to(PACKAGE).as_posix()] = None

    body = chat(stream=True)
    board = SharedBoard(create_board(4, 1), 0)
    tokenizer = demo_tokenizer()
    request = inspect(Kind.CHAT, body)
    assert isinstance(request, ChatBody)
    count = len(tokenizer.chat_ids(request)) // 4
    usage = USAGE.replace(b'"prompt_tokens":3', b'"prompt_tokens":%d' % count)
    answer = stream(*(usage if one == USAGE else one for one in EVENTS))
    async with (
        Upstream(answering(answer)) as upstream,
        gateway(upstream.url, tokenizer=tokenizer, board=board) as bench,
    ):
        client = await bench.client()
        for _ in range(2):
            await client.ask(post(CHAT, body))
        sys.setprofile(called)
        try:
            await client.ask(post(CHAT, body))
        finally:
            sys.setprofile(None)
    return list(files)


def test_every_file_of_the_tour_is_there() -> None:
    assert [name for name in toured() if not (PACKAGE / name).is_file()] == []


@pytest.mark.skipif(
    (tokenlane.gateway.request.__file__ or "").endswith(".so"),
    reason="compiled functions are not seen by a profiler",
)
async def test_the_tour_names_what_runs_in_its_order() -> None:
    files = await traced()
    assert [name for name in toured() if name in files] == files
    assert len(files) <= FILES_LIMIT

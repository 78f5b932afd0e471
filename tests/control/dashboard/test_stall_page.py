"""The log of stalls: bounded, latest first, and a page that nobody's request id can write on."""

import array
from html.parser import HTMLParser
from typing import Any

import pytest

from tokenlane.control.dashboard.stall_page import page, wants_page
from tokenlane.control.stall_log import HELD_COUNT, KEPT_COUNT, StallLog
from tokenlane.telemetry.stalls.stall import InHand, Stall


def stall(at_s: float, **fields: Any) -> Stall:
    usual: dict[str, Any] = {"worker": 0, "began_s": at_s, "length_s": 0.02, "cause": "inspect"}
    return Stall(at_s=at_s, **{**usual, **fields})


class Texts(HTMLParser):
    """The texts and tags of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_last_hundred_the_latest_first() -> None:
    log = StallLog()
    for second in range(250):
        log.stalled(stall(1e9 + second, worker=second % 3))
    stalls = log.view()["stalls"]
    assert [one["at_s"] for one in stalls] == [1e9 + second for second in range(249, 149, -1)]
    assert len(stalls) == KEPT_COUNT
    assert stalls[0]["at"] == "2001-09-09T01:50:49.000+00:00"
    assert stalls[0]["cause"] == "inspect"


def test_the_ten_with_the_longest_piece_of_work_stay() -> None:
    log = StallLog()
    for second in range(300):
        held_s = 0.0 if second % 3 else (second * 7 % 100) / 1000
        log.stalled(stall(1e9 + second, held_s=held_s))
    held = [one["held_s"] for one in log.view()["held"]]
    assert (
        held
        == sorted((second * 7 % 100 / 1000 for second in range(0, 300, 3)), reverse=True)[
            :HELD_COUNT
        ]
    )
    log = StallLog()
    log.stalled(stall(1e9))
    assert log.view()["held"] == []


def test_the_longest_of_the_last_minute_by_cause() -> None:
    log = StallLog(lambda: 100.0)
    for began_s, length_s, cause in (
        (39.0, 0.9, "gc"), (38.0, 0.5, "os"), (50.0, 0.1, "os"), (60.0, 0.2, "os"),
    ):  # fmt: skip
        log.stalled(stall(began_s, length_s=length_s, cause=cause))
    for _ in range(5 * KEPT_COUNT):
        log.stalled(stall(90.0, length_s=0.01, cause="os"))
    assert log.longest() == {"os": 0.2}


def test_lateness_by_worker() -> None:
    log = StallLog(lambda: 100.0)
    log.beats(1, array.array("f", [0.1] * 99 + [0.5]).tobytes())
    log.beats(0, array.array("f", [0.001]).tobytes())
    first, second = log.view()["workers"]
    assert (first["worker"], first["beats"]) == (0, 1)
    assert (second["worker"], second["beats"]) == (1, 100)
    assert second["p50_s"] == pytest.approx(0.1, rel=0.02)
    assert second["max_s"] == pytest.approx(0.5, rel=0.02)
    # Exact, and each once.
    log.beats(1, array.array("f", [0.25, 0.125]).tobytes())
    log.beats(1, b"")
    assert log.take_worst() == {0: pytest.approx(0.001), 1: 0.5}
    assert log.take_worst() == {}


def test_the_page() -> None:
    log = StallLog()
    log.beats(0, array.array("f", [0.25]).tobytes())
    evil = InHand("<script>alert(1)</script>", "/v1/completions", "tokens")
    log.stalled(
        stall(
            1e9,
            stack=("proxy/tokenlane/protocols/bodies.py:40 <lambda>",),
            in_hand=(evil,),
            in_hand_count=31,
        )
    )
    seen = Texts(page(log.view()))
    text = "\n".join(seen.texts)
    for expected in (
        "proxy/tokenlane/protocols/bodies.py:40 <lambda>",
        "<script>alert(1)</script>  /v1/completions  tokens",
        "and 30 more",
        "inspect 1",
        "2001-09-09 01:46:40.000",
    ):
        assert expected in text
    assert not any(tag in ("script", "link", "img") for tag, _ in seen.tags)
    assert not any("src" in attributes or "href" in attributes for _, attributes in seen.tags)


def test_a_page_without_stalls() -> None:
    assert "The last 0 stalls" in page(StallLog().view())


@pytest.mark.parametrize(
    ("accept", "asked", "html"),
    [
        ("", None, False),
        ("*/*", None, False),
        ("application/json", None, False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None, True),
        ("text/html, application/json", None, False),
        ("text/html", "json", False),
        ("*/*", "html", True),
    ],
)
def test_what_is_wanted(accept: str, asked: str | None, html: bool) -> None:
    assert wants_page(accept, asked) is html

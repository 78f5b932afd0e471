"""The laboratory's pure parts: traces, arrivals, conversations, beats and phases."""

import gzip
import math
import struct
from pathlib import Path

import msgspec
import pytest

from bench import trace, workload
from bench.lab import arrivals, traces
from bench.lab.ablation import RUNGS
from bench.lab.beats import Beats
from bench.lab.burst import MODES
from bench.lab.cache import NEW, SYSTEM, TAGS, Lookups
from bench.lab.common import Options
from bench.lab.gateways import late, throughput
from bench.openloop import Call, Result
from bench.processes import BenchError
from bench.queueing import gaps_s, variation
from tokenlane.config.settings import TokenSettings

INSTRUCTIONS = "Answer with one command. " * 20


def row(at: int, session: str, text: str, output: str) -> trace.Row:
    return trace.Row(at, text, session, output)


def test_a_text_trace_becomes_conversations() -> None:
    first, other = f"task a\n{INSTRUCTIONS}", f"task b\n{INSTRUCTIONS}"
    asked = traces.from_rows([
        row(1, "s", first, "ls"), row(2, "t", other, "cat"), row(3, "s", f"{first}\nfile", "done"),
    ])  # fmt: skip
    system = asked[0].messages[0]
    assert system == ("system", f"\n{INSTRUCTIONS}")
    assert asked[0].messages == [system, ("user", "task a")]
    assert asked[1].messages == [system, ("user", "task b")]
    assert asked[2].messages == [
        system, ("user", "task a"), ("assistant", "ls"), ("user", "\nfile"),
    ]  # fmt: skip


def test_prompts_that_never_grow_are_no_conversation() -> None:
    with pytest.raises(BenchError, match="no conversation"):
        traces.from_rows([row(1, "s", "a", ""), row(2, "t", "b", "")])


def test_made_conversations_grow_and_share_their_system_prompts() -> None:
    asked = traces.made(sessions=6)
    assert asked == traces.made(sessions=6)
    assert len(asked) == 6 * traces.TURNS
    last: dict[str, list[tuple[str, str]]] = {}
    for one in asked:
        before = last.get(one.session, [])
        assert one.messages[: len(before)] == before
        assert len(one.messages) == len(before) + 2
        last[one.session] = one.messages
    assert len({one.messages[0] for one in asked}) <= traces.SYSTEM_PROMPTS


def test_lookups_by_kind() -> None:
    lookups = Lookups()
    talk = [("system", "s"), ("user", "u1")]
    lookups.request(traces.Asked("x", talk))
    lookups.request(traces.Asked("x", [*talk, ("assistant", "a"), ("user", "u2")]))
    assert lookups.rate(TAGS) == pytest.approx(3 / 6)
    assert lookups.rate(SYSTEM) == pytest.approx(1 / 2)
    assert lookups.rate(NEW) == 0.0
    assert 0.0 < lookups.rate_of_text < 1.0


def test_made_arrivals_are_as_bursty_as_the_public_ones() -> None:
    made = arrivals.made()
    assert arrivals.busiest(made)[1] == arrivals.PEAK
    assert math.sqrt(variation(gaps_s([one.due_s for one in made])) or 0) == pytest.approx(13, 0.2)
    kept = arrivals.window(made, 30.0)
    assert arrivals.busiest(kept)[1] == arrivals.PEAK
    assert all(0.0 <= one.due_s < 30.0 for one in kept)


def test_arrivals_are_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    lines = (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:04.5319600,7,1",
        "2023-11-16 18:17:03.9799600,4808,10",
    )
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = arrivals.read(path)
    assert [one.tokens for one in found] == [4808, 7]
    assert found[1].due_s == pytest.approx(0.552)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(BenchError, match="TIMESTAMP"):
        arrivals.read(path)
    path.write_bytes(b"TIMESTAMP,ContextTokens\n")
    with pytest.raises(BenchError, match="no arrivals"):
        arrivals.read(path)


def test_no_turn_of_a_conversation_is_like_another() -> None:
    talk = workload.Conversations()
    seen = [text for nonce in ("a", "b") for _, text in talk.messages(8_000, 8, nonce)]
    assert len(set(seen)) == 16
    assert sum(map(len, seen)) == pytest.approx(16_000, rel=0.02)
    assert workload.Conversations().body(8_000, 8, "a") == talk.body(8_000, 8, "a")
    assert len(workload.varied(5_000, 1)) == 5_000


def test_beats_are_read_as_they_are_written(tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats")
    assert beats.late_s(1.0, 3.0) == [2.0]  # none came at all
    made = [(10.0, 0.0), (10.5, 0.4), (10.9, 0.001), (11.5, 0.6)]
    with (tmp_path / "beats").open("r+b") as file:
        file.write(struct.pack("<q", 4) + b"".join(struct.pack("<dd", *one) for one in made))
    # Due at 10.9: the stall that began in time counts whole.
    assert beats.late_s(10.05, 11.0) == [0.4, 0.001, 0.6]
    # One is still to come, 2 ms after the last.
    assert beats.late_s(11.0, 12.0) == [pytest.approx(0.498)]
    assert beats.late_s(12.0, 13.0) == [1.0]
    found = late([0.4, 0.001, 0.6], wall_s=2.0)
    assert found.blocked == pytest.approx(0.5)
    assert found.max_ms == 600.0
    assert late([], 1.0).p99_ms is None


def test_answers_count_while_load_comes() -> None:
    calls = [Call(0.0, 0.0, 0.1, 0.1, 200, whole=True), Call(0.9, 0.9, 2.5, 2.5, 200, whole=True)]
    assert throughput(Result({"x": calls}, 0.1, 3.0), 1.0) == {"x": 1.0}


@pytest.mark.parametrize("tokens", [*RUNGS.values(), *MODES.values()])
def test_every_rung_is_made_of_settings_there_are(tokens: dict[str, object]) -> None:
    assert isinstance(msgspec.convert(tokens, TokenSettings), TokenSettings)


def test_options_say_themselves_as_flags() -> None:
    given = Options("full", trace=Path("t"))
    assert given.argv() == ["--full", "--trace", "t"]
    assert Options().argv() == []
    with pytest.raises(BenchError, match="no folder"):
        Options(tokenizers=Path("/nonexistent")).models()

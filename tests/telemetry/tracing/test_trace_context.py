"""W3C trace context: what names a parent, and what a replica is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.telemetry.tracing.trace_context import TraceContext, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_parent(value: str, sampled: bool) -> None:
    parent = parse(value.encode())
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert parent.sampled is sampled


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_no_parent(value: str) -> None:
    assert parse(value.encode()) is None


@given(st.binary(max_size=80))
def test_whatever_comes_is_no_error(value: bytes) -> None:
    parse(value)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (b"", b""),
        (b"accept: */*\r\n", b"accept: */*\r\n"),
        (b"a: 1\r\ntraceparent: 00-x\r\nb: 2\r\n", b"a: 1\r\nb: 2\r\n"),
        (b"traceparent: 1\r\ntraceparent: 2\r\n", b""),
        (b"x-traceparent: 1\r\ntracestate: k=v\r\n", b"x-traceparent: 1\r\ntracestate: k=v\r\n"),
        (b"a: traceparent: 1\r\n", b"a: traceparent: 1\r\n"),
    ],
)
def test_the_replica_is_told_one_parent(lines: bytes, kept: bytes) -> None:
    parent = parse(f"00-{TRACE}-{SPAN}-01".encode())
    trace = TraceContext(parent)
    own = f"{trace.span_id:016x}"
    assert own != SPAN
    assert trace.forwarded(lines) == kept + f"traceparent: 00-{TRACE}-{own}-01\r\n".encode()


def test_a_trace_that_begins_here_can_be_read() -> None:
    trace = TraceContext(None)
    line = trace.forwarded(b"").decode().removeprefix("traceparent: ").rstrip()
    parent = parse(line.encode())
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (trace.trace_id, trace.span_id)
    assert trace.parent_id == 0

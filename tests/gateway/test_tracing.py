"""Tracing: what a collector gets of real requests, and what a replica is told of the trace."""

import json
import sys
import time
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.otlp import collecting, value
from tests.raw import Upstream, answering, json_bytes, ok, post, stream
from tests.support import demo_tokenizer, gateway
from tokenlane.config.settings import Settings, TracingSettings
from tokenlane.control.checks import problems
from tokenlane.errors import ConfigError
from tokenlane.telemetry.log.lines import Entry
from tokenlane.telemetry.queued_writer import LineCounts
from tokenlane.telemetry.tracing.exporter import Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ["read", "inspect", "tokens", "route", "attempt", "first_byte", "relay"]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chat(*headers: str, **fields: Any) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
    return post("/v1/chat/completions", json_bytes(body), "".join(f"{one}\r\n" for one in headers))


def told(upstream: Upstream) -> list[bytes]:
    """The traceparent that each request brought to the replica."""
    return [
        value for asked in upstream.asked for name, value in asked.headers if name == b"traceparent"
    ]


@pytest.mark.slow
async def test_a_request_is_a_span_with_its_stages_below() -> None:
    answer = ok(json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode())
    with collecting() as collector:
        tracer = Tracer(TracingSettings(endpoint=collector.url + "/"), 7)
        async with Upstream(answering(answer)) as replica:
            tokenizer = demo_tokenizer()
            async with gateway(replica.url, tokenizer=tokenizer, tracer=tracer) as bench:
                before_ns = time.time_ns()
                header = f"traceparent: 00-{TRACE}-{SPAN}-01"
                assert (await bench.ask(chat(header, "tracestate: k=v"))).status == 200
        tracer.close()
    assert tracer.counts() == LineCounts(written=1)
    assert collector.services == {("tokenlane", "worker-7")}
    (own,) = collector.of("chat demo")
    assert (own.trace_id.hex(), own.parent_span_id.hex()) == (TRACE, SPAN)
    assert own.kind == Span.SPAN_KIND_SERVER
    assert own.status.code == Status.STATUS_CODE_UNSET
    assert told(replica) == [f"00-{TRACE}-{own.span_id.hex()}-01".encode()]
    assert (b"tracestate", b"k=v") in replica.asked[0].headers

    below = [span for span in collector.spans if span is not own]
    assert [span.name for span in below] == STAGES
    assert {span.parent_span_id for span in below} == {own.span_id}
    assert {span.trace_id for span in below} == {own.trace_id}
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    edges = [below[0].start_time_unix_nano, *(span.end_time_unix_nano for span in below)]
    assert edges == sorted(edges)
    assert own.start_time_unix_nano == edges[0]
    assert before_ns - 50_000_000 < own.start_time_unix_nano <= own.end_time_unix_nano
    assert own.end_time_unix_nano < time.time_ns() + 50_000_000

    assert value(own.attributes, "http.response.status_code") == 200
    assert value(own.attributes, "http.route") == "/v1/chat/completions"
    assert value(own.attributes, "gen_ai.operation.name") == "chat"
    assert value(own.attributes, "gen_ai.provider.name") == "vllm"
    assert value(own.attributes, "http.request.method") == "POST"
    assert value(own.attributes, "gen_ai.request.model") == "demo"
    assert value(own.attributes, "gen_ai.usage.input_tokens") == 3
    assert value(own.attributes, "gen_ai.usage.output_tokens") == 2
    assert value(own.attributes, "tokenlane.replica") == replica.url.removeprefix("http://")
    assert value(own.attributes, "tokenlane.policy") == "affinity"
    assert value(own.attributes, "tokenlane.rung") == "short"


@pytest.mark.slow
async def test_who_decides_what_is_recorded() -> None:
    with collecting() as collector:
        never = Tracer(TracingSettings(endpoint=collector.url, sample_ratio=0.0))
        async with (
            Upstream(answering(ok())) as replica,
            gateway(replica.url, tracer=never) as bench,
        ):
            unsampled, sampled = f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-01"
            await bench.ask(chat())
            assert told(replica) == []
            await bench.ask(chat(f"traceparent: {unsampled}"))
            assert told(replica) == [unsampled.encode()]  # as it came
            await bench.ask(chat(f"traceparent: {sampled}"))
        never.close()
        assert len(collector.of("chat demo")) == 1

        always = Tracer(TracingSettings(endpoint=collector.url))
        async with (
            Upstream(answering(stream())) as replica,
            gateway(replica.url, tracer=always) as bench,
        ):
            await bench.ask(chat("traceparent: nonsense", stream=True))
        always.close()
    begun = collector.of("chat demo")[-1]
    assert begun.parent_span_id == b""
    expected = f"00-{begun.trace_id.hex()}-{begun.span_id.hex()}-01".encode()
    assert told(replica) == [expected]
    assert value(begun.attributes, "tokenlane.time_to_first_token_s") > 0


@pytest.mark.slow
async def test_what_failed_says_so() -> None:
    with collecting() as collector:
        tracer = Tracer(TracingSettings(endpoint=collector.url))
        async with gateway("http://127.0.0.1:9", tracer=tracer) as bench:
            assert (await bench.ask(chat())).status == 503
            assert (await bench.ask(chat(model="none"))).status == 404
        tracer.close()
    (failed,) = collector.of("chat demo")
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert value(failed.attributes, "error.type") == "503"
    (refused,) = collector.of("chat other")
    assert refused.status.code == Status.STATUS_CODE_UNSET  # the client's mistake, not ours
    assert value(refused.attributes, "http.response.status_code") == 404


@pytest.mark.slow
def test_a_collector_that_refuses_costs_traces_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = Entry(1.0, "traced", b"x", "other", "demo", 200, "ok", 0.1, [])
    with collecting() as collector:
        collector.status = 400
        settings = TracingSettings(endpoint=collector.url, queue_limit_count=3)
        tracer = Tracer(settings)
        for _ in range(5):
            trace = tracer.begin(None)
            assert trace is not None
            tracer.offer((entry, trace))
        tracer.close()
    assert tracer.counts() == LineCounts(full=2, failed=3)
    assert collector.spans == []
    assert caplog.messages == [f"traces do not reach {collector.url}; the metrics count lost ones"]


@pytest.mark.slow
def test_no_collector_at_all_holds_up_no_end() -> None:
    tracer = Tracer(TracingSettings(endpoint="http://127.0.0.1:9"))
    trace = tracer.begin(None)
    assert trace is not None
    entry = Entry(1.0, "traced", b"x", "other", "demo", 200, "ok", 0.1, [])
    tracer.offer((entry, trace))
    began_s = time.monotonic()
    tracer.close()
    assert time.monotonic() - began_s < 30
    assert tracer.counts().written == 0


def test_without_the_extra_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'tokenlane\[otel\]'"):
        Tracer(TracingSettings(endpoint="http://127.0.0.1:9"))


SHAPE = "tracing.endpoint: must look like http://HOST:4318"
NO_USER = (
    "tracing.endpoint: must not hold a user name or password; the variable"
    " OTEL_EXPORTER_OTLP_HEADERS may hold what the collector wants to see"
)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://collector:4318", []),
        ("https://[::1]/otlp", []),
        ("collector:4318", [SHAPE]),
        ("u:s3cret@collector:4318", [SHAPE]),
        ("grpc://collector:4317", [SHAPE]),
        ("http://", [SHAPE]),
        ("http://:4318", [SHAPE]),
        ("http://collector:0", [SHAPE]),
        ("http://u:s3cret@collector:port", [SHAPE]),
        ("http://[", [SHAPE]),
        ("http://u:s3cret@collector:4318", [NO_USER]),
        ("https://s3cret@collector", [NO_USER]),
    ],
)
def test_an_endpoint_is_an_address_without_secrets(endpoint: str, said: list[str]) -> None:
    settings = Settings(backends=("http://a:1",), tracing=TracingSettings(endpoint=endpoint))
    assert list(problems(settings)) == said

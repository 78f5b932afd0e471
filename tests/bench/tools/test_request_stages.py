"""A request's stages out of what client, gateway and vLLM say."""

import pytest

from bench.tools import accelerator, request_stages, scrape

ANSWER = (
    b'1f\r\ndata: {"choices":[{"delta":{}}]}\n\n\r\n'
    b'data: {"choices":[],"metrics":{"queue_time_ms":1.0,"time_to_first_token_ms":20.0,'
    b'"generation_time_ms":30.0}}\n\ndata: [DONE]\n\n'
)


def test_vllms_own_metrics() -> None:
    assert len(request_stages.events(ANSWER)) == 2
    assert request_stages.own_metrics([ANSWER, ANSWER]) == {
        "queue": 1.0, "prefill": 20.0, "decode": 30.0,
    }  # fmt: skip
    assert request_stages.own_metrics([b""])["queue"] is None


def test_what_nobody_counts_is_http() -> None:
    engine = {"queue": 1.0, "prefill": 20.0, "decode": 30.0}
    made = request_stages.combined(100.0, 60.0, 5.0, engine, {"serialize": 0.1, "parse": 0.2})
    assert tuple(made) == request_stages.STAGES
    assert made["HTTP and waiting"] == pytest.approx(35.0)
    assert made["template, tokenize, hand over"] == pytest.approx(9.0)
    assert request_stages.combined(1.0, None, 0.0, {}, {})["HTTP and waiting"] is None


def test_means_between_two_scrapes() -> None:
    text = (
        '# TYPE t histogram\nt_bucket{{stage="read",le="+Inf"}} {n}\n'
        't_sum{{stage="read"}} {s}\nt_count{{stage="read"}} {n}\n'
    )
    before, after = (scrape.parse(text.format(n=n, s=s)) for n, s in ((1, 1.0), (3, 1.5)))
    assert request_stages.mean_ms(before, after, "t", stage="read") == pytest.approx(250)
    assert request_stages.mean_ms(before, after, "t", stage="route") is None


def test_a_longer_context_lies_on_the_line() -> None:
    short, long = {"prefill": 10.0, "queue": 1.0, "parse": None}, {"prefill": 30.0, "queue": 0.0}
    made = request_stages.scaled(short, long, (1_000, 2_000), 4_000)
    assert made == {"prefill": 70.0, "queue": 0.0, "parse": None}


def test_an_accelerators_samples() -> None:
    assert accelerator.shares("40\n60\n[N/A]\n") == [0.4, 0.6]
    with accelerator.busy() as busy:
        pass
    if accelerator.name() is None:
        assert busy.mean is None

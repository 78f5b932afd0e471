"""Streams that did not begin waited for their first token."""

import pytest

from bench.experiments import streams
from bench.loads.openloop import Call


@pytest.mark.parametrize(
    ("call", "waited_ms"),
    [
        pytest.param(Call(1.0, 1.0, 1.5, 2.0, 200, 129, whole=True), 500.0, id="well"),
        pytest.param(Call(1.0, 1.0, 1.5, 2.0, 200, 7), 500.0, id="broken off later"),
        pytest.param(Call(1.0, 1.0), 7_000.0, id="never answered"),
        pytest.param(Call(1.0, 1.0, 1.001, 1.001, 503, whole=True), 7_000.0, id="refused"),
    ],
)
def test_the_time_to_the_first_token(call: Call, waited_ms: float) -> None:
    assert streams.ttft_ms([call], end_s=8.0) == [waited_ms]

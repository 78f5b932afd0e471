"""Settings that cannot be meant are refused."""

from typing import Any

import msgspec
import pytest

from tokenlane.simulator.profile import SimulatorSettings


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"block_tokens": 0}, "block_tokens"),
        ({"running_limit": 0}, "running_limit"),
        ({"cache_blocks": 0}, "cache_blocks"),
        ({"prefill_tokens_per_s": 0.0}, "prefill_tokens_per_s"),
        ({"frontend_bytes_per_s": -1.0}, "frontend_bytes_per_s"),
        ({"token_interval_s": -0.1}, "token_interval_s"),
    ],
)
def test_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert(fields, SimulatorSettings)


def test_context_is_bounded_by_model_and_cache() -> None:
    assert SimulatorSettings(max_model_tokens=100).context_tokens == 100
    assert SimulatorSettings(max_model_tokens=100, cache_blocks=3).context_tokens == 48

"""The studies set only what a gateway can be told."""

import msgspec
import pytest

from bench.experiments import bursts
from bench.studies import arrivals
from bench.studies.ablation import RUNGS
from bench.studies.burst import MODES
from tokenlane.config.settings import TokenSettings


@pytest.mark.parametrize(
    "tokens",
    [*RUNGS.values(), *MODES.values(), *bursts.RUNS.values(), *arrivals.GATEWAYS.values()],
)
def test_every_rung_is_made_of_settings_there_are(tokens: dict[str, object]) -> None:
    assert isinstance(msgspec.convert(tokens, TokenSettings), TokenSettings)

"""The sizing table's arithmetic, and that its loads are ones the generator knows."""

from typing import get_args, get_type_hints

import pytest

from bench.experiments import sizing
from bench.loads.openloop import Flow


@pytest.mark.parametrize(
    ("rate_per_s", "cpu_s", "cores"), [(100, 0.005, 1.0), (1000, 0.0001, 0.2), (10, 0.0, 0.0)]
)
def test_half_of_each_core_is_left_free(rate_per_s: float, cpu_s: float, cores: float) -> None:
    assert sizing.cores_for(rate_per_s, cpu_s) == pytest.approx(cores)


def test_every_load_is_one_that_the_generator_makes() -> None:
    made = set(get_args(get_type_hints(Flow)["body"]))
    assert {kind for *_, kinds in sizing.LENGTHS for kind in kinds} <= made & sizing.KINDS.keys()

"""Settings: frozen, named with their units."""

import msgspec
import pytest

from tokenlane.config.options import OPTIONS
from tokenlane.config.settings import RoutingSettings, Settings


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_names_carry_their_units() -> None:
    """Numbers that are neither counts nor names say what they are in."""
    plain = "port workers threads processes alpha idle_alpha sibling_alpha".split()
    plain += ["host_block_worth", "load_factor"]
    units = {"seconds": "_s", "bytes": "_bytes", "tokens": "_tokens", "blocks": "_blocks"}
    units |= {"jobs": "_jobs", "bytes per second": "_bytes_per_s"}
    for path, option in OPTIONS.items():
        name = path.rpartition(".")[2]
        if option.unit is not None:
            assert name.endswith(units[option.unit]), path
        elif type(option.default) in (int, float) and name not in plain:
            assert name.endswith(("_ratio", "_lines", "_count")), path


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({"load_factor": 0.9}, r"Expected `float` >= 1.0 - at `\$.load_factor`"),
        ({"alpha": 0.6}, "idle_alpha: must be at least alpha, which is 0.6"),
        ({"sibling_alpha": 0.05}, "sibling_alpha: must be at least alpha"),
        ({"idle_alpha": 2}, "Expected `float` <= 1.0"),
    ],
)
def test_numbers_that_no_policy_can_work_with(routing: dict[str, float], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(routing, RoutingSettings)

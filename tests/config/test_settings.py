"""Settings: frozen, named with their units."""

import msgspec
import pytest

from tokenlane.config.settings import RoutingSettings, Settings


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_names_carry_their_units() -> None:
    """Numbers that are neither counts nor names say what they are in."""
    plain = "port workers threads processes alpha idle_alpha sibling_alpha".split()
    plain += ["host_block_worth", "load_factor"]
    for section in Settings().__struct_fields__:
        values = getattr(Settings(), section)
        if not isinstance(values, msgspec.Struct):
            continue
        for name in values.__struct_fields__:
            if type(getattr(values, name)) in (int, float) and name not in plain:
                units = (
                    "_ratio",
                    "_lines",
                    "_s",
                    "_bytes",
                    "_count",
                    "_tokens",
                    "_entries",
                    "_jobs",
                    "_blocks",
                )
                assert name.endswith(units), f"{section}.{name}"


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({"load_factor": 0.9}, "load_factor must be at least 1"),
        ({"alpha": 0.6}, "0 <= alpha <= idle_alpha <= 1"),
        ({"idle_alpha": 2}, "0 <= alpha <= idle_alpha <= 1"),
    ],
)
def test_numbers_that_no_policy_can_work_with(routing: dict[str, float], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(routing, RoutingSettings)

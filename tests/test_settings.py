"""Settings: defaults, then a file, then the command line; what is wrong is named with its path."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.settings import Settings, load, merge


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_defaults_serve() -> None:
    assert load(None, {}) == Settings()


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "server: {port: 1, workers: 2}\nbackends: [http://a]\n")
    made = load(file, {"server": {"port": 9}, "backends": ["http://b", "http://c"]})
    assert (made.server.port, made.server.workers) == (9, 2)
    assert made.backends == ("http://b", "http://c")
    assert made.server.host == Settings().server.host


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_is_a_file(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, text), {}) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {prot: 1}", "unknown field `prot` - at `$.server`"),
        ("sever: {}", "unknown field `sever`"),
        ("server: {port: many}", "`$.server.port`"),
        ("server: {port: 1.5}", "`$.server.port`"),
        ("server: 7", "`$.server`"),
        ("tokens: {fallback: perhaps}", "`$.tokens.fallback`"),
        ("backends: http://a", "`$.backends`"),
        ("backends: [1]", "`$.backends[0]`"),
        ("server: {port: true}", "`$.server.port`"),
        ("- a\n- b", "the top level must be a mapping"),
        ("just words", "the top level must be a mapping"),
        ("server: {port: 1", "gateway.yaml:"),
        ("a: b: c", "gateway.yaml:1: is not YAML"),
        (b"\xff\xfe\x00", "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        load(written(tmp_path, text), {})
    assert said in str(wrong.value)
    assert "gateway.yaml" in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml", {})


def test_the_command_line_is_named_where_it_is_wrong() -> None:
    with pytest.raises(ConfigError, match="command line: "):
        load(None, {"server": {"port": "x"}})


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_names_carry_their_units() -> None:
    """Numbers that are neither counts nor names say what they are in."""
    plain = "port workers threads processes alpha idle_alpha host_block_worth load_factor".split()
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


NESTED = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), NESTED)


@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_merging(one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]) -> None:
    assert merge(one, {}) == merge({}, one) == merge(one, one) == one
    assert set(merge(one, two)) == set(one) | set(two)
    before = repr(one), repr(two)
    merge(merge(one, two), three)
    assert (repr(one), repr(two)) == before


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({"load_factor": 0.9}, "load_factor must be at least 1"),
        ({"alpha": 0.6}, "0 <= alpha <= idle_alpha <= 1"),
        ({"idle_alpha": 2}, "0 <= alpha <= idle_alpha <= 1"),
    ],
)
def test_numbers_that_no_policy_can_work_with(routing: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(None, {"routing": routing})

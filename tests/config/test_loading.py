"""Settings from a file, variables and flags: the last word counts, and what is wrong is named with
file, line, path, and what was probably meant."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scripts.chart import SCHEMA, values_schema
from tests.paths import ROOT
from tokenlane.config import loading
from tokenlane.config.loading import load, look, merge, printed, schema
from tokenlane.config.options import OPTIONS
from tokenlane.config.settings import Section, Settings
from tokenlane.config.settings_file import SettingsFile
from tokenlane.control.fleet_table import FleetTable
from tokenlane.errors import ConfigError, ConfigProblems

EXAMPLES = sorted((ROOT / "config").glob("*.yaml"))


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_defaults_serve() -> None:
    loaded = load(None)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_the_last_word_counts_and_origins_are_told(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "server:\n  port: 1\n  workers: 2\n  host: h\nbackends: [http://a]\n"
        "tokens:\n  folders: {m: /m}\n",
    )
    made = load(
        file,
        {"server.port": ["9"], "tokens.folders": ["n=/n"]},
        {"TOKENLANE_PORT": "5", "TOKENLANE_WORKERS": "7"},
    )
    server = made.settings.server
    assert (server.port, server.workers, server.host) == (9, 7, "h")
    # Mappings are laid on each other, lists are replaced.
    assert made.settings.tokens.folders == {"m": "/m", "n": "/n"}
    assert made.settings.backends == ("http://a",)
    origins = made.origins
    assert origins["server.port"] == "--port"
    assert origins["server.workers"] == "TOKENLANE_WORKERS"
    assert origins["server.host"] == f"{file}:4"
    assert origins["backends"] == f"{file}:5"
    assert origins["routing.alpha"] == "default"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "server:\n", "server: {}\n"])
def test_an_empty_file_is_a_file(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, text)).settings == Settings()


NONE = "there is no such setting"
PORT = "must be a whole number from 0 to 65535, and is"


# Each line means ten of the one before.
LAUGHS = "".join(
    f"k{n}: &k{n} [{', '.join([f'*k{n - 1}' if n else '1'] * 10)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server:\n  prot: 1", f":2: server.prot: {NONE}; did you mean server.port?"),
        ("sever: {}", f":1: sever: {NONE}; did you mean server?"),
        ("port: 1", f":1: port: {NONE}; did you mean server.port?"),
        ("server.port: 1", ":1: server.port: must be in its section, `server: {port: ...}`"),
        (
            "auth: {keys: [{key: a, tenant: b}]}",
            f":1: auth.keys[0].key: {NONE}; known here: digest, tenant, expires",
        ),
        ("\nrouting:\n  aplha: 1", f":3: routing.aplha: {NONE}; did you mean routing.alpha?"),
        ("tokens: {segment_limit_bytes: 1}", f"{NONE}; did you mean tokens.cache_limit_bytes?"),
        ("tokens: {prefix_entry_limit_bytes: 1}", "did you mean tokens.cache_entry_limit_bytes?"),
        ("admin: {zzz: 1}", f"admin.zzz: {NONE}; known here: host, port"),
        ("server: {port: many}", f":1: server.port: {PORT} text"),
        ("server: {port: 1.5}", f"server.port: {PORT} 1.5"),
        ("server: {port: true}", f"server.port: {PORT} true or false"),
        ("server: {port: }", f"server.port: {PORT} empty"),
        ("server: 7", ":1: server: must be a mapping, and is 7"),
        ("tokens: {fallback: perhaps}", "must be one of: wait, bail, and is 'perhaps'"),
        ("tokens: {fast_engines: 3}", "tokens.fast_engines: must be true or false"),
        ("stalls: {beat_s: 0}", ":1: stalls.beat_s: must be a number above 0"),
        ("log:\n  sample_ratio: 2", ":2: log.sample_ratio: must be a number from 0 to 1, and is 2"),
        ("upstream: {head_limit_bytes: -1}", "must be a whole number of at least 0, and is -1"),
        ("backends: http://a", "backends: must be a list, and is text"),
        ("backends:\n  - http://a\n  - 1", ":3: backends[1]: must be text, and is 1"),
        ("prices:\n  m:\n    output_per_milion: 1", f":3: prices.m.output_per_milion: {NONE}"),
        ("prices: {m: 3}", "prices.m: must be a mapping, and is 3"),
        ("tokens:\n  folders:\n    m: 1", ":3: tokens.folders.m: must be text, and is 1"),
        ("server: {port: 1}\nserver: {port: 2}", ":2: server: given twice, first in line 1"),
        ("server: {port: 1, port: 2}", ":1: server.port: given twice, first in line 1"),
        ("'<<': 1\n'<<': 2", ":2: <<: given twice, first in line 1"),
        ("1: 2", f"1: {NONE}"),
        ("- a\n- b", "the top level must be a mapping"),
        ("just words", "the top level must be a mapping"),
        ("server: {port: 1", "gateway.yaml:"),
        ("a: b: c", "gateway.yaml:1: is not YAML"),
        ("a: !!python/object:os.system x", "gateway.yaml:1: is not YAML"),
        ("backends: &a [*a]", ":1: backends[0]: contains itself (by an alias)"),
        (LAUGHS, ": means more than 100000 values; is an alias used too often?"),
        ("\nport: 1" + ":1" * 1000, ":2: holds a number with too many digits"),
        ("\nserver: &a {port: *a}", ":2: server.port: contains itself"),
        (b"\xff\xfe\x00", "is not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as wrong:
        load(file)
    assert said in str(wrong.value)
    assert str(wrong.value).startswith(str(file))
    assert "\n" not in str(wrong.value)


def test_what_is_merged_into_a_mapping_may_be_overridden(tmp_path: Path) -> None:
    text = (
        "prices:\n  a: &a {input_per_million: 1, output_per_million: 2}\n"
        "  b:\n    <<: *a\n    input_per_million: 3\n"
    )
    file = written(tmp_path, text)
    made = load(file)
    prices = made.settings.prices
    assert prices["b"].input_per_million == 3
    assert prices["b"].output_per_million == prices["a"].output_per_million == 2
    assert made.lines["prices.b.input_per_million"] == f"{file}:5"


def test_all_that_is_wrong_is_found_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "server:\n  prot: 1\n  workers: x\nadmin:\n  port: y\n")
    with pytest.raises(ConfigProblems) as wrong:
        load(file)
    assert [problem.split(": ")[0] for problem in wrong.value.problems] == [
        f"{file}:2", f"{file}:3", f"{file}:5",
    ]  # fmt: skip
    assert "and 2 more" in str(wrong.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["server", "port", "prices", "m", "tokens", "folders", "backends", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_no_file_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    file = tmp_path_factory.mktemp("config") / "gateway.yaml"
    file.write_text(yaml.safe_dump(value), encoding="utf-8")
    with contextlib.suppress(ConfigError):
        load(file)


def test_what_is_printed_can_be_loaded(tmp_path: Path) -> None:
    first = load(
        EXAMPLES[0],
        {"tokens.folders": ["a/b:=/d#e"]},
        {"TOKENLANE_PORT": "5"},
    )
    text = printed(first)
    again = load(written(tmp_path, text))
    assert again.settings == first.settings
    line = next(line for line in text.splitlines() if line.startswith("  port: 5"))
    assert line.endswith("# TOKENLANE_PORT; restart")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("tokens.forward_tokens", "off", "off"),
        ("tokens.forward_tokens", "'off'", "off"),
        ("log.access", "off", "off"),
        ("discovery.kubernetes_port", "8000", "8000"),
        ("discovery.kubernetes_port", "http", "http"),
    ],
)
def test_text_that_yaml_takes_for_something_else(
    path: str, text: str, value: str, tmp_path: Path
) -> None:
    section, _, name = path.partition(".")
    settings = load(written(tmp_path, f"{section}: {{{name}: {text}}}\n")).settings
    assert getattr(getattr(settings, section), name) == value
    [taken, *_] = property_of(schema(), (section, name))["anyOf"]
    assert taken["type" if "type" in taken else "enum"]


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("tokens.forward_tokens", "on", "must be one of: off, completions, all, and is true"),
        ("tokens.fallback", "off", "must be one of: wait, bail, and is true or false"),
        ("routing.policy", "off", "must be text, and is true or false"),
        ("log.access", "7", "must be text, and is 7"),
        ("discovery.kubernetes_port", "off", "must be text, and is true or false"),
        ("discovery.kubernetes_port", "80.5", "must be text, and is 80.5"),
    ],
)
def test_text_that_it_cannot_have_meant(path: str, text: str, said: str, tmp_path: Path) -> None:
    section, _, name = path.partition(".")
    with pytest.raises(ConfigError, match=said):
        load(written(tmp_path, f"{section}: {{{name}: {text}}}\n"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples(file: Path) -> None:
    settings = load(file).settings
    FleetTable(settings.backends, settings.control)
    made = schema()
    for path in paths(yaml.safe_load(file.read_text(encoding="utf-8"))):
        assert property_of(made, path), path
    assert "$schema=schema.json" in file.read_text(encoding="utf-8")


def test_the_examples_there_should_be() -> None:
    assert {file.stem for file in EXAMPLES} >= {
        "demo", "one-host", "production", "multi-model", "kubernetes",
    }  # fmt: skip


def test_the_schema_shipped_is_this_one() -> None:
    """`python -m tokenlane print-config --schema > config/schema.json` remakes it."""
    assert json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8")) == (
        json.loads(json.dumps(schema()))
    )


def test_the_schema_in_the_chart_is_this_one() -> None:
    shipped = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert shipped == json.loads(json.dumps(values_schema())), "run: python -m scripts.chart"


def paths(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a file, with those above it."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield (*above, name)
            yield from paths(below, (*above, name))


def property_of(made: dict[str, Any], path: tuple[str, ...]) -> Any:
    """What a schema says of a key; None if it does not allow it."""
    node: Any = made
    for name in path:
        if "$ref" in node:
            node = made["$defs"][node["$ref"].rpartition("/")[2]]
        properties = node.get("properties", {})
        node = properties.get(name) or node.get("additionalProperties")
        if not node:
            return None
    return node


def test_the_schema_knows_names_and_types() -> None:
    made = schema()
    assert property_of(made, ("server", "prot")) is None
    assert property_of(made, ("sever",)) is None
    assert property_of(made, ("server", "port"))["type"] == "integer"
    assert property_of(made, ("prices", "any", "input_per_million"))["type"] == "number"
    assert property_of(made, ("prices", "any", "input")) is None
    assert property_of(made, ("tokens", "fallback"))["enum"] == ["bail", "wait"]


def test_the_schema_describes_every_setting() -> None:
    text = json.dumps(schema())
    for option in OPTIONS.values():
        assert json.dumps(option.help)[1:-1] in text


class Pair(Section, frozen=True):
    """Two that belong together."""

    low: int = 1
    high: int = 10

    def conflicts(self) -> Iterator[str]:
        if self.low > self.high:
            yield "low: must not be above high"


def test_values_that_do_not_go_together_and_those_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wider(Settings, frozen=True):
        pair: Pair = Pair()

    monkeypatch.setattr(loading, "Settings", Wider)
    text = "pair:\n  high: 3\n  low: 11\nmodels:\n  shadows:\n    a: {to: b}\n"
    file = written(tmp_path, text)
    found = look(SettingsFile.read(file))
    assert found.problems == [
        f"{file}:6: models.shadows.a: needs `ratio`",
        f"{file}:3: pair.low: must not be above high",
    ]
    # What does not go together can still be looked at.
    assert (found.settings.pair.low, found.settings.pair.high) == (11, 3)  # type: ignore[attr-defined]
    assert Pair() == Pair(low=1)


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"server.port": ["x"]}, {}, "--port: 'x' must be a whole number from 0 to 65535"),
        ({}, {"TOKENLANE_PORT": "-1"}, "TOKENLANE_PORT: server.port: must be a whole number"),
        ({"prices": ['{"m": 1}']}, {}, "--prices: prices.m: must be a mapping, and is 1"),
        ({"routing.alpha": ["0.9"]}, {}, "routing.idle_alpha: must be at least alpha"),
        ({"log.format": ["jsn"]}, {}, "--log-format: 'jsn' must be one of: auto, json, text"),
    ],
)
def test_what_is_wrong_beside_the_file(
    flags: dict[str, list[str]], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigProblems) as wrong:
        load(None, {**flags, "server.workers": ["0"]}, environ)
    problems = wrong.value.problems
    assert any(problem.startswith(said) for problem in problems), problems
    assert any(problem.startswith("--workers: server.workers: must") for problem in problems)
    assert len(problems) == 2


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

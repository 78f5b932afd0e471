"""The table of options: every setting has a flag, a variable, a path, and a word of help."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.options import (
    OPTIONS,
    Option,
    from_environment,
    leaves,
    read,
    shown,
    unknown_variables,
    wanted,
)
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.errors import ConfigError


def test_every_setting_is_an_option_and_no_two_share_a_name() -> None:
    assert list(OPTIONS) == [path for path, _ in leaves(Settings())]
    for names in (
        {one.flag for one in OPTIONS.values()},
        {one.variable for one in OPTIONS.values()},
    ):
        assert len(names) == len(OPTIONS)


@pytest.mark.parametrize(
    ("path", "flag", "variable", "unit", "default"),
    [
        ("server.port", "--port", "TOKENLANE_PORT", None, "8080"),
        ("backends", "--backend", "TOKENLANE_BACKEND", None, None),
        ("tokens.folders", "--tokenizer", "TOKENLANE_TOKENIZER", None, None),
        (
            "server.head_limit_bytes", "--server-head-limit-bytes",
            "TOKENLANE_SERVER_HEAD_LIMIT_BYTES", "bytes", "65536",
        ),
        (
            "upstream.idle_deadline_s", "--upstream-idle-deadline-s",
            "TOKENLANE_UPSTREAM_IDLE_DEADLINE_S", "seconds", "4.0",
        ),
        (
            "tokens.context_check", "--tokens-context-check",
            "TOKENLANE_TOKENS_CONTEXT_CHECK", None, "true",
        ),
    ],
)  # fmt: skip
def test_names(path: str, flag: str, variable: str, unit: str | None, default: str | None) -> None:
    option = OPTIONS[path]
    assert (option.flag, option.variable) == (flag, variable)
    assert (option.unit, option.default_text) == (unit, default)


@pytest.mark.parametrize(
    ("path", "texts", "value"),
    [
        ("server.port", ["9000"], 9000),
        ("server.port", ["1", "2"], 2),
        ("routing.alpha", ["1"], 1.0),
        ("tokens.fast_engines", ["false"], False),
        ("tokens.fast_engines", ["1"], True),
        ("tokens.fallback", ["wait"], "wait"),
        ("server.host", ["::"], "::"),
        ("backends", ["http://a,http://b", "http://c"], ["http://a", "http://b", "http://c"]),
        ("backends", ["http://a http://b"], ["http://a", "http://b"]),
        ("tokens.folders", ["m=/a", "n=/b=c"], {"m": "/a", "n": "/b=c"}),
        (
            "prices", ['{"m": {"input_per_million": 2}}'],
            {"m": {"input_per_million": 2}},
        ),
    ],
)  # fmt: skip
def test_values(path: str, texts: list[str], value: Any) -> None:
    assert read(OPTIONS[path], texts, "--x") == value


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("server.port", "many", "--x: 'many' must be a whole number"),
        ("server.port", "1.5", "--x: '1.5' must be a whole number"),
        ("routing.alpha", "much", "--x: 'much' must be a number"),
        ("tokens.fast_engines", "perhaps", "--x: 'perhaps' must be true or false"),
        ("tokens.fallback", "hope", "--x: 'hope' must be one of: wait, bail"),
        ("tokens.folders", "m", "--x: 'm' must look like MODEL=DIR"),
        ("tokens.folders", "=/d", "--x: '=/d' must look like MODEL=DIR"),
        ("prices", "cheap", "--x: is not JSON; it must be a mapping"),
    ],
)
def test_what_is_no_value(path: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        read(OPTIONS[path], [text], "--x")
    assert said in str(wrong.value)


@given(st.text(), st.sampled_from(list(OPTIONS.values())))
def test_no_text_raises_anything_else(text: str, option: Option) -> None:
    with contextlib.suppress(ConfigError):
        read(option, [text], "--x")


def test_variables() -> None:
    environ = {
        "TOKENLANE_PORT": "9000",
        "TOKENLANE_BACKEND": "http://a,http://b",
        "TOKENLANE_WORKERS": "",
        "TOKENLANE_ADMIN_PORT": "tcp://10.1.2.3:8081",  # Kubernetes' word for a Service
        "PATH": "/bin",
    }
    given = {option.path: text for option, text in from_environment(environ)}
    assert given == {"backends": "http://a,http://b", "server.port": "9000"}


def test_variables_that_mean_nothing() -> None:
    environ = {
        "TOKENLANE_PROT": "1",
        "TOKENLANE_PORT": "1",
        "TOKENLANE_CONFIG": "x",
        "TOKENLANE_SERVICE_HOST": "10.0.0.1",
        "TOKENLANE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "TOKENLANE_TOKENS_SHAPE_LIMIT_ENTRIES": "9",
        "OTHER": "x",
    }
    assert unknown_variables(environ) == {
        "TOKENLANE_PROT": "TOKENLANE_PORT",
        "TOKENLANE_TOKENS_SHAPE_LIMIT_ENTRIES": "TOKENLANE_TOKENS_CACHE_LIMIT_BYTES",
    }


def test_what_is_shown() -> None:
    rows = {path: rest for path, *rest in shown(Settings(server=ServerSettings(port=1)))}
    assert rows["server.port"] == ["1", False]
    assert rows["server.host"] == ['"127.0.0.1"', True]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (str, "text"),
        (bool, "true or false"),
        (dict[str, str], "a mapping"),
    ],
)
def test_words_for_types(kind: Any, words: str) -> None:
    assert wanted(kind) == words

"""Thirty broken configurations: `check-config` names every mistake of each in one pass, with its
line, and the start refuses what it refuses."""

import asyncio
import tempfile
import tomllib
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import gateway
from tokenlane.channel.messages import Hello
from tokenlane.cli.main import main
from tokenlane.config.loading import load, merge, schema
from tokenlane.config.settings import Settings
from tokenlane.config.tls import upstream_context
from tokenlane.control.checks import check_settings
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.reload import read_all
from tokenlane.control.tokenizers.resolution import given_sources
from tokenlane.errors import ConfigError
from tokenlane.runtime import ports
from tokenlane.worker.resources import Resources, load_tokenizers

# A verb that serves sets up this process' logs.
pytestmark = pytest.mark.usefixtures("logging_as_it_was")

BROKEN = tomllib.loads(Path(__file__).with_name("broken.toml").read_text(encoding="utf-8"))[
    "broken"
]


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: row["name"])
@pytest.mark.parametrize("flag", [(), ("--config",)], ids=["file", "flag"])
def test_every_mistake_is_named_in_one_pass(
    row: dict[str, Any],
    flag: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(row["text"], encoding="utf-8")
    assert main(["check-config", *flag, str(file)]) == 1
    lines = [line.removeprefix("tokenlane: ") for line in capsys.readouterr().err.splitlines()]
    named = [line.removeprefix(f"{file}:") for line in lines]
    assert len(named) == len(row["said"]), named
    for sentence in row["said"]:
        assert any(line.startswith(sentence) for line in named), (sentence, named)
    # The start says the first of them, and how many more there are.
    assert main(["serve", *flag, str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    more = f" (and {len(lines) - 1} more: tokenlane check-config names them all)"
    assert line == f"tokenlane: {lines[0]}" + more * (len(lines) > 1)


def test_there_are_thirty() -> None:
    assert len({row["text"] for row in BROKEN}) == len(BROKEN) >= 30


# -- what passes is served -------------------------------------------------------------------

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 64, 65, 256, 65535, 65536, 10**9, 2**62, 2**63, 2**64, 10**30,
    -0.5, 0.0, 0.05, 0.5, 1.0, 1.5, 1e9, 2e9, 1e300, float("inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "a", "a:1", "a b", "\0", "\ud800", "é", "-", "/", "/nowhere/file", "..", "off", "stdout",
    "127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "999.1.1.1", "10.0.0.0/8", "10.0.0.0/99",
    "http://a:1", "http://a:0", "http://a:99999", "https://a", "http://[", "http://u:p@a:1",
    "tcp://a:1", "tcp://a:65535", "tcp://a:99999", "a/b", "a/b/c", "affinity", "random", "*",
)  # fmt: skip


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the schema has it, some beyond its bounds, and some of other types."""
    if "anyOf" in kind:
        return st.one_of(*map(values, kind["anyOf"]))
    if "$ref" in kind:
        return values(schema()["$defs"][kind["$ref"].rpartition("/")[2]])
    if "enum" in kind:
        return st.sampled_from([*kind["enum"], "other"])
    if kind["type"] in ("integer", "number"):
        return st.sampled_from(NUMBERS)
    if kind["type"] == "boolean":
        return st.sampled_from((True, False, "true"))
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=3)
    if kind["type"] == "object" and "properties" in kind:
        needed = {name: values(kind["properties"][name]) for name in kind.get("required", ())}
        others = {name: values(one) for name, one in kind["properties"].items()}
        optional = {name: one for name, one in others.items() if name not in needed}
        return st.fixed_dictionaries(needed, optional={**optional, "prot": st.just(1)})
    if kind["type"] == "object":
        names = st.sampled_from([*TEXTS, 1])
        return st.dictionaries(names, values(kind["additionalProperties"]), max_size=2)
    return st.sampled_from(TEXTS)


def drawn() -> st.SearchStrategy[dict[str, Any]]:
    """A few settings of a gateway that serves without them. Few: a file with many mistakes hides
    those that were not foreseen."""
    sections = schema()["$defs"]

    def of(name: str, kind: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        section = sections.get(kind.get("$ref", "").rpartition("/")[2], {})
        inner = [
            st.fixed_dictionaries({key: values(one)})
            for key, one in section.get("properties", {}).items()
        ]
        return st.fixed_dictionaries({name: st.one_of(*inner) if inner else values(kind)})

    one = st.one_of(*(of(*row) for row in sections["Settings"]["properties"].items()))
    return st.lists(one, min_size=1, max_size=3).map(_laid)


def _laid(given: list[dict[str, Any]]) -> dict[str, Any]:
    laid: dict[str, Any] = {
        "backends": ["http://127.0.0.1:9"],
        "server": {"port": 0},
        "admin": {"port": 0},
    }
    for more in given:
        laid = merge(laid, more)
    return laid


async def _serve(given: Settings) -> None:
    """What a start does with settings, as far as no process and no replica is needed."""
    check_settings(given)
    keys = read_all(given).keys
    given_sources(given)
    table = FleetTable(given.backends, given.control)
    server = given.server
    with suppress(ports.TakenError):
        ports.reserve(server.host, server.port, shared=server.share_port).close()
    with suppress(ports.TakenError):
        ports.admin_listener(given.admin.host, given.admin.port).close()
    upstream_context(given.upstream)
    told = Hello(
        worker=0, settings=given, metrics_fd=0, board_fd=0, fleet=table.state,
        host="", port=0, keys=keys,
    )  # fmt: skip
    hello = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Hello)
    assert hello.settings == given
    await load_tokenizers(given.tokens)
    resources = Resources.of(hello)
    try:
        async with gateway(
            settings=_modest(hello.settings),
            state=hello.fleet,
            access=resources.access,
            tracer=resources.tracer,
            replica_key=resources.replica_key,
            tls=resources.upstream_tls,
        ):
            pass
    finally:
        resources.close()


def _modest(given: Settings) -> Settings:
    """The same with as few tokenizer threads and processes as a test should start."""
    tokens = given.tokens
    few = {"threads": min(tokens.threads, 2), "processes": min(tokens.processes, 1)}
    return msgspec.structs.replace(given, tokens=msgspec.structs.replace(tokens, **few))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn())
def test_what_check_config_passes_is_served_and_nothing_else(values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # where an access log may be
        file = Path(folder) / "gateway.yaml"
        file.write_bytes(yaml.dump(values).encode())
        passes = main(["check-config", str(file)]) == 0
        try:
            asyncio.run(_serve(load(file).settings))
        except ConfigError as error:
            assert not passes, (values, str(error))  # noqa: PT017 - what is drawn may be right
        else:
            assert passes, values

"""A setting is one field: here is one more, and all that is made of a setting has it."""

import argparse
from typing import Annotated

import pytest

from scripts.chart import values_schema
from scripts.reference import markdown
from tokenlane.config.differences import changed
from tokenlane.config.flags import setting_flags
from tokenlane.config.loading import schema
from tokenlane.config.options import OPTIONS, from_environment, options_of, read
from tokenlane.config.settings import Seconds, ServerSettings, Settings, Words, live, restart


class Server(ServerSettings, frozen=True):
    """With two settings more."""

    nap_s: Annotated[Seconds, live("longest nap of a worker")] = 1.5
    pillows: Annotated[Words, restart("what it naps on", "--pillow", metavar="FILL")] = ("down",)


class Wider(Settings, frozen=True):
    """With such a server."""

    server: Server = Server()


OURS = options_of(Wider)


def test_it_is_an_option() -> None:
    assert list(OURS) == [
        path
        for known in OPTIONS
        for path in (known, *["server.nap_s", "server.pillows"] * (known == "server.cors_origins"))
    ]
    nap, pillows = OURS["server.nap_s"], OURS["server.pillows"]
    assert (nap.type, nap.unit, nap.metavar, nap.default) == (float, "seconds", "X", 1.5)
    assert (nap.flags, nap.variable) == (("--server-nap-s",), "TOKENLANE_SERVER_NAP_S")
    assert (pillows.flags, pillows.variable) == (("--pillow",), "TOKENLANE_PILLOW")
    assert (pillows.unit, pillows.metavar, pillows.default_text) == (None, "FILL", "down")


def test_it_is_a_flag_with_help() -> None:
    parser = argparse.ArgumentParser()
    setting_flags(parser, options=OURS)
    said = " ".join(parser.format_help().split())
    assert (
        "--server-nap-s X longest nap of a worker (seconds; default: 1.5)"
        " [TOKENLANE_SERVER_NAP_S, server.nap_s]"
    ) in said
    assert "--pillow FILL [FILL ...] what it naps on (default: down) [TOKENLANE_PILLOW" in said
    assert vars(parser.parse_args(["--pillow", "a", "b"]))["server.pillows"] == ["a", "b"]


def test_it_is_a_variable() -> None:
    environ = {"TOKENLANE_SERVER_NAP_S": "3", "TOKENLANE_PILLOW": "hay,wool"}
    given = {
        option.path: read(option, [text], option.variable)
        for option, text in from_environment(environ, OURS)
    }
    assert given == {"server.nap_s": 3.0, "server.pillows": ["hay", "wool"]}


def test_it_is_in_the_schemas() -> None:
    for made in (schema(Wider), values_schema(Wider)):
        assert made["$defs"]["Server"]["properties"]["nap_s"] == {
            "type": "number",
            "minimum": 0,
            "maximum": 1_000_000_000,
            "default": 1.5,
            "description": "longest nap of a worker (seconds)",
        }


def test_it_is_a_row_of_the_page() -> None:
    rows = markdown(Wider).splitlines()
    names = "`--server-nap-s` | `TOKENLANE_SERVER_NAP_S`"
    assert f"| `nap_s` | longest nap of a worker | seconds | `1.5` | {names} |" in rows
    names = "`--pillow` | `TOKENLANE_PILLOW`"
    assert f"| `pillows` | what it naps on; *restart* | a list | `down` | {names} |" in rows


def test_a_reload_knows_whether_it_can_change() -> None:
    read = Wider(server=Server(nap_s=2.0, pillows=()))
    found = changed(Wider(), read)
    assert (found.live, found.restart) == (("server.nap_s",), ("server.pillows",))
    assert found.settings == Wider(server=Server(nap_s=2.0))


def test_one_that_does_not_say_whether_it_can_change_is_no_setting() -> None:
    class Silent(Settings, frozen=True):
        nap_s: Seconds = 1.5

    with pytest.raises(TypeError, match="Missing required argument"):
        options_of(Silent)

"""Replicas of a running gateway come and go: real processes, driven as an operator does."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.cli.main import main
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

pytestmark = pytest.mark.slow

LONG = {"model": "demo", "prompt": "Say a lot", "max_tokens": 60, "stream": True}
SHORT = {"model": "demo", "prompt": "Say little", "max_tokens": 1}


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetProcess]:
    with FleetProcess(2, free_ports(2), ("--token-interval-s", "0.02")) as fleet:
        yield fleet


def rows(gateway: Gateway) -> dict[str, Any]:
    told = json.loads(gateway.ask("/replicas", admin=True)[1])
    return {row["id"]: row for row in told["replicas"]}


def test_replicas_are_added_drained_and_removed_and_streams_run_on(
    fleet: FleetProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n", encoding="ascii")
    first, second = (url.removeprefix("http://") for url in fleet.urls)
    listed = tmp_path / "replicas.json"
    listed.write_text(json.dumps([fleet.urls[0]]), encoding="utf-8")
    argv = ["serve", "--discovery-file", str(listed), "--admin-token-file", str(token)]
    with Gateway(*argv, "--workers", "2", "--tokens-discover", "false") as gateway:

        def verb(*words: str) -> str:
            admin = f"http://127.0.0.1:{gateway.admin_port}"
            flags = ["--admin", admin, "--admin-token-file", str(token)]
            assert main(["replicas", *words, *flags]) == 0
            return capsys.readouterr().out

        def replica() -> str | None:
            """Where a request goes."""
            with contextlib.closing(gateway.send("/v1/completions", SHORT)) as connection:
                with connection.getresponse() as response:
                    assert response.status == 200
                    return response.headers["x-tokenlane-replica"]

        assert rows(gateway)[first]["origin"] == f"file {listed}"
        assert f"{second}  in the fleet" in verb("add", fleet.urls[1])
        until(lambda: bool(rows(gateway)[second]["up"]))
        assert rows(gateway)[second]["origin"] == "api"

        connection = gateway.send("/v1/completions", LONG)
        running = connection.getresponse()
        name = running.headers["x-tokenlane-replica"]
        other = second if name == first else first
        assert "draining, 1 in flight" in verb("drain", name)
        assert rows(gateway)[name]["draining"]
        with contextlib.closing(connection), running:
            # Nothing new goes there, and the stream that does is not cut when it is removed.
            until(lambda: {replica() for _ in range(3)} == {other})
            assert "removed, 1 in flight" in verb("remove", name)
            assert list(rows(gateway)) == [other]
            assert [gateway.chat() for _ in range(4)] == [200] * 4
            said = running.read()
            assert said.count(b"data:") >= 60
            assert said.rstrip().endswith(b"data: [DONE]")
        assert other in verb("list")
        assert gateway.stop() == 0

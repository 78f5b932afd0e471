"""A file of replicas, and sources that come and go with the settings."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenlane.config.settings import ControlSettings, DiscoverySettings
from tokenlane.control.discovery import file
from tokenlane.control.discovery.sources import Discovery, checks
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.roster import Roster
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import Load


class Scene:
    """A discovery in front of a roster."""

    def __init__(self) -> None:
        self.table = FleetTable((), ControlSettings())
        self.roster = Roster(self.table, 8, lambda _: Load(0, 0), lambda _new, _gone: None)
        self.discovery = Discovery(self.roster)

    @property
    def staying(self) -> list[str]:
        return [member.id for member in self.roster.members if not member.draining]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.005)


async def test_a_file_is_followed_and_what_is_wrong_with_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file, "LOOK_S", 0.01)
    path = tmp_path / "replicas.json"
    path.write_text(json.dumps(["http://a:1"]), encoding="utf-8")
    scene = Scene()
    scene.discovery.configure(DiscoverySettings(file=str(path)))
    async with asyncio.timeout(20):
        await scene.discovery.first.wait()
    assert scene.staying == ["a:1"]
    assert scene.roster.members[0].origin == f"file {path}"
    path.write_text("- http://b:1\n- http://a:1\n", encoding="utf-8")
    await until(lambda: scene.staying == ["a:1", "b:1"])
    for text, sentence in (
        ("- http://b:1\n- [\n", "replicas.json:3: is not YAML"),
        ("{a: 1}", "must be a list of http://HOST:PORT"),
        ("- nonsense", "must look like http://HOST:PORT"),
    ):
        path.write_text(text, encoding="utf-8")
        await until(lambda sentence=sentence: sentence in caplog.text)  # type: ignore[misc]  # its own
    path.write_text("", encoding="utf-8")  # somebody begins to write
    path.unlink()
    await until(lambda: "cannot be read" in caplog.text)
    assert scene.staying == ["a:1", "b:1"]
    path.write_text("[]", encoding="utf-8")
    await until(lambda: scene.staying == [])
    await scene.discovery.close()


@pytest.mark.parametrize(
    "text",
    ["- http://a:1\n- 2027-02-30\n", "- !!int x\n", "- !!float\n", "[" * 3000, "- \xe9", "- {}"],
    ids=range(6),
)
def test_a_file_that_is_no_list_of_urls(text: str, tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"replicas.yaml: must be a list of http://HOST:PORT$"):
        file.read(path)


async def test_a_source_that_is_no_longer_named_takes_its_replicas_along(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two")]
    for number, path in enumerate(paths):
        path.write_text(f"- http://r{number}:1\n- http://both:1\n", encoding="utf-8")
    scene = Scene()
    scene.discovery.configure(DiscoverySettings())
    assert scene.discovery.first.is_set()  # there is nobody to wait for
    scene.discovery.configure(DiscoverySettings(file=str(paths[0])))
    await until(lambda: scene.staying == ["r0:1", "both:1"])
    scene.discovery.configure(DiscoverySettings(file=str(paths[1])))
    await until(lambda: sorted(scene.staying) == ["both:1", "r1:1"])
    await scene.discovery.close()


@pytest.mark.parametrize(
    "settings",
    [
        DiscoverySettings(dns=("vllm:8000",)),
        DiscoverySettings(dns_servers=("nobody",)),
        DiscoverySettings(kubernetes_service="a/b/c"),
    ],
)
def test_mistakes_are_found_before_anybody_is_asked(settings: DiscoverySettings) -> None:
    wrong = next(checks(settings))
    with pytest.raises(ConfigError, match="discovery"):
        wrong()

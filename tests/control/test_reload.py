"""Settings read anew from real files, in front of a fleet that is told of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tokenlane.config.loading import LoadedSettings, load
from tokenlane.control import reload
from tokenlane.control.checks import check_settings
from tokenlane.control.reload import Given, InForce, Reloader, ReloadReport, read_all
from tokenlane.errors import ConfigError

GOOD = "backends: [http://a:1]\n"
DIGEST = "0" * 64


class Scene:
    """A file, the reloader that reads it, and what was put in force."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gateway.yaml"
        self.keys = folder / "keys.yaml"
        self.keys.write_text(f"- {{digest: '{DIGEST}', tenant: t}}\n", encoding="ascii")
        self.write()
        self.applied: list[InForce] = []
        self.refusing: list[str] = []
        self.told = asyncio.Event()
        given = Given(self.file, lambda: load(self.file))
        first = read_all(load(self.file).settings)
        self.reloader = Reloader(given, first, check_settings, self._apply)

    def write(self, more: str = "") -> None:
        self.file.write_text(GOOD + f"auth: {{keys_file: {self.keys}}}\n" + more, encoding="utf-8")

    async def _apply(self, new: InForce) -> list[str]:
        self.told.set()
        if not self.refusing:
            self.applied.append(new)
        return self.refusing

    async def once(self) -> ReloadReport:
        return await self.reloader.reload("a test asks")

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.reloader.row().reloads
        return counts


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_what_is_different_is_put_in_force_whole(scene: Scene) -> None:
    assert await scene.once() == ReloadReport("unchanged")
    assert scene.applied == []
    scene.write("routing: {policy: random}\nserver: {port: 1234}\n")
    assert await scene.once() == ReloadReport("applied", ("routing.policy",), ("server.port",))
    (new,) = scene.applied
    assert scene.reloader.in_force is new
    assert (new.settings.routing.policy, new.settings.server.port) == ("random", 8080)
    assert await scene.once() == ReloadReport("unchanged", (), ("server.port",))


@pytest.mark.row("O8")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("backends: [\n", "gateway.yaml:2: is not YAML"),
        ("backend: http://a:1\n", "gateway.yaml:1: backend: there is no such setting; did you"),
        ("backends: []\n", "no replica to serve from"),
        (
            "backends: [http://gpu\u20131:8000]\n",  # a dash as word processors have it
            "gateway.yaml:1: backends[0]: 'http://gpu\\u20131:8000': its host has characters",
        ),
        (GOOD + "routing: {policy: rnd}\n", "gateway.yaml:2: routing.policy: 'rnd' is unknown"),
        (GOOD + "auth: {keys_file: /nowhere}\n", "auth.keys_file: /nowhere cannot be read"),
    ],
)
async def test_a_broken_file_is_refused_with_its_line_and_all_stays(
    scene: Scene, text: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = scene.reloader.in_force
    scene.file.write_text(text, encoding="utf-8")
    report = await scene.once()
    assert (report.outcome, len(report.problems)) == ("refused", 1)
    assert sentence in report.problems[0]
    assert sentence in caplog.text
    assert (scene.reloader.in_force, scene.applied) == (before, [])
    assert scene.reloader.row().last.problems == report.problems
    assert [
        cells for family, _, cells in scene.reloader.samples() if "successful" in family.name
    ] == [[0.0]]
    scene.file.unlink()
    assert (await scene.once()).outcome == "refused"
    scene.write()
    assert (await scene.once()).outcome == "applied"  # its file was made anew
    assert scene.counts == {"applied": 1, "unchanged": 0, "refused": 2}


async def test_every_mistake_of_a_file_is_named(scene: Scene) -> None:
    scene.file.write_text("backend: x\nservr: 1\n", encoding="utf-8")
    assert len((await scene.once()).problems) == 2


async def test_what_a_worker_does_not_want_is_refused(scene: Scene) -> None:
    before = scene.reloader.in_force
    scene.refusing = ["log.access: /x cannot be written"]
    scene.write("log: {access: /x}\n")
    report = await scene.once()
    assert (report.outcome, report.problems) == ("refused", ("log.access: /x cannot be written",))
    assert scene.reloader.in_force is before


async def test_what_was_refused_is_tried_again(scene: Scene) -> None:
    scene.refusing = ["a worker has no file descriptor left"]
    scene.keys.write_text("[]\n", encoding="ascii")
    assert (await scene.once()).outcome == "refused"
    scene.keys.write_text(f"- {{digest: '{DIGEST}', tenant: t}}\n", encoding="ascii")
    assert (await scene.once()).outcome == "refused"  # the settings are those in force
    scene.refusing = []
    assert (await scene.once()).outcome == "applied"
    assert (await scene.once()).outcome == "unchanged"


async def test_whatever_goes_wrong_the_gateway_goes_on(scene: Scene) -> None:
    def broken() -> LoadedSettings:
        raise RuntimeError("not foreseen")

    reloader = Reloader(
        Given(scene.file, broken), scene.reloader.in_force, check_settings, scene._apply
    )
    assert (await reloader.reload("SIGHUP")).outcome == "refused"

    async def vanished(_: InForce) -> list[str]:
        raise ConfigError("upstream.api_key_file: /x cannot be read")

    given = Given(scene.file, lambda: load(scene.file))
    reloader = Reloader(given, scene.reloader.in_force, check_settings, vanished)
    scene.write("prices: {m: {input_per_million: 1.0}}\n")
    assert (await reloader.reload("SIGHUP")).problems == (
        "upstream.api_key_file: /x cannot be read",
    )


async def test_keys_are_read_anew_with_the_settings_the_same(scene: Scene) -> None:
    scene.keys.write_text("[]\n", encoding="ascii")
    assert await scene.once() == ReloadReport("applied", ("auth.keys_file",))
    assert scene.applied[0].keys == ()
    scene.keys.write_text("- {digest: short, tenant: t}\n", encoding="ascii")
    report = await scene.once()
    assert "keys.yaml:1: keys[0].digest: must be 64 hex" in report.problems[0]
    assert scene.reloader.in_force.keys == ()


async def test_settings_that_came_with_the_program_stay(scene: Scene) -> None:
    reloader = Reloader(None, scene.reloader.in_force, check_settings, scene._apply)
    assert (await reloader.reload("SIGHUP")).outcome == "refused"
    assert reloader.row().file is None


@asynccontextmanager
async def watching(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(reload, "LOOK_S", 0.01)
    task = asyncio.get_running_loop().create_task(scene.reloader.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.005)


async def test_files_that_change_are_read_also_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A config map: the file is a link through a folder that is swapped by its own link.
    for version, policy in (("one", "affinity"), ("two", "random")):
        (tmp_path / version).mkdir()
        text = GOOD + f"routing: {{policy: {policy}}}\n"
        (tmp_path / version / "gateway.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "mounted").mkdir()
    scene = Scene(tmp_path / "mounted")
    scene.file.unlink()
    scene.file.symlink_to("../data/gateway.yaml")
    async with watching(scene, monkeypatch):
        await _until(lambda: scene.counts["applied"] == 1)  # the keys are no more
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").replace(tmp_path / "data")
        await _until(lambda: scene.counts["applied"] == 2)
        assert scene.reloader.in_force.settings.routing.policy == "random"


async def test_a_broken_file_is_said_once_and_one_that_is_mended_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(scene, monkeypatch):
        scene.file.write_text("backends: [\n", encoding="utf-8")
        await _until(lambda: scene.counts["refused"] == 1)
        await asyncio.sleep(0.1)
        scene.write("prices: {m: {input_per_million: 1.0}}\n")
        await _until(lambda: scene.counts["applied"] == 1)
        assert scene.counts == {"applied": 1, "unchanged": 0, "refused": 1}

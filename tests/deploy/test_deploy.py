"""Container, compose, systemd and Helm files: held to what they name, and the unit to the real tool
where this machine has it. The other real tools: test_tools.py."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.paths import ROOT
from tokenlane import __version__
from tokenlane.config.loading import load
from tokenlane.config.settings import Settings
from tokenlane.control.checks import check_settings
from tokenlane.tokens.demo import demo_folder

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tokenlane"
UNIT = DEPLOY / "systemd" / "tokenlane.service"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# -- container -------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def test_the_image_copies_what_there_is_and_what_is_not_ignored() -> None:
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY"]
    sources = {source for words in copied if "--from" not in words[0] for source in words}
    assert sources == {line[1:] for line in let_in if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_is_small_and_nobody_is_root() -> None:
    stages = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    last = instructions()[stages[-1] :]
    assert len(stages) == 2
    assert not any("apt-get" in words or "pip" in words for _, words in last)
    (user,) = [words for name, words in last if name == "USER"]
    uid = user.split(":", maxsplit=1)[0]
    assert uid.isdigit()
    assert int(uid) > 0
    (health,) = [words for name, words in last if name == "HEALTHCHECK"]
    assert '"tokenlane", "healthcheck"' in health


def test_the_image_has_an_init() -> None:
    """The kernel gives pid 1 no SIGTERM that it has not asked for, and all orphans."""
    [entry] = [words for name, words in instructions() if name == "ENTRYPOINT"]
    assert yaml.safe_load(entry) == ["tini", "--", "tokenlane"]
    assert ("COPY", "--from=build /usr/bin/tini /usr/bin/tini") in instructions()
    [installs] = [words for name, words in instructions() if "apt-get install" in words]
    assert "tini" in installs.split()
    # Neither of these goes around it.
    services = read(DEPLOY / "compose" / "compose.yaml")["services"]
    ours = [one for one in services.values() if one["image"] == "tokenlane"]
    assert len(ours) == 3
    assert not any("entrypoint" in one for one in ours)
    deployment = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    assert not re.search(r"^ {10}command:", deployment, re.MULTILINE)


# -- compose ---------------------------------------------------------------------------------


def test_compose_mounts_what_there_is() -> None:
    folder = DEPLOY / "compose"
    compose = read(folder / "compose.yaml")
    services = compose["services"]
    assert set(services) == {"gateway", "another", "store", "replicas", "prometheus", "grafana"}
    for service in services.values():
        for mount in service.get("volumes", ()):
            source, target, *_ = mount.split(":")
            assert target.startswith("/")
            assert (folder / source).exists() if "/" in source else source in compose["volumes"]
        depends = service.get("depends_on", ())
        assert set(depends) <= set(services)
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    build = services["gateway"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).is_file()


def test_composes_store_starts_without_capabilities() -> None:
    """The image's own entrypoint, as root, becomes another user, which needs capabilities."""
    store = read(DEPLOY / "compose" / "compose.yaml")["services"]["store"]
    assert store["cap_drop"] == ["ALL"]
    assert int(store["user"].partition(":")[0]) > 0
    assert "command" not in store
    chart = (CHART / "templates" / "valkey.yaml").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ +command: (\[valkey-server.*\])$", chart, re.MULTILINE)
    assert store["entrypoint"] == yaml.safe_load(command)


def test_composes_gateway_has_settings_that_serve() -> None:
    folder = DEPLOY / "compose"
    folders = {"tokens.folders": [f"demo={demo_folder()}"]}
    settings = load(folder / "tokenlane.yaml", folders).settings
    check_settings(settings)
    command = read(folder / "compose.yaml")["services"]["replicas"]["command"]
    replicas, port = (int(command[command.index(flag) + 1]) for flag in ("--replicas", "--port"))
    assert settings.backends == tuple(f"http://replicas:{port + n}" for n in range(replicas))
    mounts = read(folder / "compose.yaml")["services"]["gateway"]["volumes"]
    (demo,) = load(folder / "tokenlane.yaml").settings.tokens.folders.values()
    assert any(mount.split(":")[1] == demo for mount in mounts)
    port = settings.admin.port
    assert read(folder / "targets.yml") == [{"targets": [f"gateway:{port}", f"another:{port}"]}]
    assert {"gateway", "another"} == set(settings.admin.hosts)
    assert settings.fleet.store == "redis://store:6379"


def test_grafana_finds_its_source_and_its_boards() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = read(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    services = read(DEPLOY / "compose" / "compose.yaml")["services"]
    assert source["url"] == "http://prometheus:9090"
    prometheus = read(DEPLOY / "prometheus" / "prometheus.yml")
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    (provider,) = read(provisioning / "dashboards" / "tokenlane.yaml")["providers"]
    mounted = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]
    boards = {path.name for path in (DEPLOY / "grafana").glob("*.json")}
    assert {f"{provider['options']['path']}/{name}" for name in boards} <= set(mounted)
    assert (
        services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
    )


# -- systemd ---------------------------------------------------------------------------------


def test_the_unit_waits_for_the_drain() -> None:
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(stop_s) > Settings().server.drain_deadline_s
    assert "\nType=notify\n" in UNIT.read_text()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # It looks whether the command exists: any program that does will do.
    text = UNIT.read_text().replace("/opt/tokenlane/bin/tokenlane", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    argv = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- Helm: test_chart.py has its engine ------------------------------------------------------


def test_the_charts_settings_serve() -> None:
    values = read(CHART / "values.yaml")
    settings = msgspec.convert(values["settings"], Settings)
    check_settings(settings)
    stop_s = values["preStopSleepSeconds"] + settings.server.drain_deadline_s
    assert values["terminationGracePeriodSeconds"] > stop_s


def test_the_chart_is_of_this_version() -> None:
    about = read(CHART / "Chart.yaml")
    assert about["version"] == about["appVersion"] == __version__


def test_the_chart_links_to_the_rules_and_the_boards() -> None:
    for name in ("rules.yml", "alerts.yml"):
        assert (CHART / "files" / name).samefile(DEPLOY / "prometheus" / name)
    assert (CHART / "files" / "grafana").samefile(DEPLOY / "grafana")

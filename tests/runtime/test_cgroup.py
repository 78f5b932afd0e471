"""Memory's limit, read as both versions of control groups write it; and a real one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.runtime.cgroup import MemoryWatch, cpu_count

MB = 1_000_000


def watch(folder: Path, own: str, files: dict[str, str], ratio: float = 0.9) -> MemoryWatch:
    (folder / "own").write_text(own)
    for name, text in files.items():
        file = folder / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return MemoryWatch(ratio, folder / "own", folder / "mount")


def test_version_2_the_tightest_group_counts(tmp_path: Path) -> None:
    files = {
        "memory.max": "max\n",
        "a/memory.max": "1000\n",
        "a/memory.current": "950\n",
        "a/memory.stat": "anon 940\ninactive_file 10\nactive_file 0\n",
        "a/b/memory.max": "2000\n",
        "a/b/memory.current": "10\n",
    }
    made = watch(tmp_path, "0::/a/b\n", files)
    assert made.limit_bytes == 1000
    assert made.short()
    (tmp_path / "mount/a/memory.stat").write_text("anon 800\ninactive_file 100\n")
    assert not made.short(), "files are given back"
    (tmp_path / "mount/a/memory.current").unlink()
    assert not made.short()


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "memory/a/memory.limit_in_bytes": "1000\n",
        "memory/a/memory.usage_in_bytes": "901\n",
        "memory/a/memory.stat": "inactive_file 900\ntotal_inactive_file 0\n",
    }
    own = "9:name=systemd:/\n4:memory:/a\n0::/\n"
    assert watch(tmp_path, own, files).short()
    assert not watch(tmp_path, own, files, ratio=0.95).short()
    assert watch(tmp_path, own, files, ratio=0.0).limit_bytes is None


@pytest.mark.parametrize("own", ["", "0::/a\n", "4:memory:/a\n"])
def test_without_a_limit(tmp_path: Path, own: str) -> None:
    made = watch(tmp_path, own, {"memory.max": "max\n"})
    assert made.limit_bytes is None
    assert not made.short()
    assert not MemoryWatch(0.9, tmp_path / "none", tmp_path).short()


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        ("0::/a/b\n", {"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "900000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 4),
        ("4:memory:/a\n3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "200000\n"}, 4),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "3:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("", {}, 4),
    ],
)
def test_cpus_by_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    watch(tmp_path, own, files)
    assert cpu_count(tmp_path / "own", tmp_path / "mount") == count


LIMIT_BYTES = 600 * MB
EATER = (
    "import sys; a = bytearray(int(input())); a[::4096] = a[::4096].replace(b'\\0', b'x'); input()"
)


class Group:
    """A control group of its own with a memory limit."""

    def __init__(self, folder: Path, limit: str, used: str) -> None:
        self.folder = folder
        self._used = folder / used
        folder.mkdir()
        try:
            (folder / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            folder.rmdir()
            raise

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def used_bytes(self) -> int:
        return int(self._used.read_text())


@pytest.fixture
def group() -> Iterator[Group]:
    for place, *names in (
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("", "memory.max", "memory.current"),
    ):
        try:
            made = Group(Path("/sys/fs/cgroup", place, f"tokenlane-{os.getpid()}"), *names)
        except OSError:
            continue
        yield made
        made.folder.rmdir()
        return
    pytest.skip("no control group can be made here")


@pytest.mark.row("O5")
@pytest.mark.slow
def test_a_gateway_short_of_memory_sheds_what_brings_a_body(group: Group) -> None:
    def code() -> str:
        told = json.loads(gate.ask("/v1/completions", {"model": "demo", "prompt": "a"})[1])
        return str(told["error"]["code"])

    with Gateway("serve", "--backend", "http://127.0.0.1:1") as gate:
        group.add(gate.process.pid)
        [worker] = gate.status()["workers"]
        os.kill(worker["pid"], signal.SIGKILL)  # the next one lives in the group
        until(lambda: gate.status()["workers"][0]["restarts"] == 1)
        until(lambda: gate.status()["workers"][0]["state"] == "ready")
        assert code() == "replicas_down"
        eater = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE, text=True)
        with eater:
            assert eater.stdin is not None
            group.add(eater.pid)
            eater.stdin.write(f"{int(0.95 * LIMIT_BYTES) - group.used_bytes}\n")
            eater.stdin.flush()
            until(lambda: code() == "out_of_memory")
            assert gate.ask("/v1/models")[0] == 200
            assert gate.ask("/livez", admin=True)[0] == 200
        until(lambda: code() == "replicas_down")
        page = gate.ask("/metrics", admin=True)[1].decode()
        assert 'tokenlane_shed_requests_total{reason="memory",tenant="other"}' in page

"""The access log on real files, pipes and full devices: at worst it loses lines, and says so."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenlane.config.settings import LogSettings
from tokenlane.errors import ConfigError
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.log.lines import Entry
from tokenlane.telemetry.log.sink import check_target
from tokenlane.telemetry.queued_writer import LineCounts

PATIENCE_S = 20.0


def entry(number: int = 0) -> Entry:
    request_id = b"req-%d" % number
    return Entry(time.monotonic(), "failed", request_id, "other", "demo", 502, "ok", 0.1, [0.01])


@contextmanager
def access_log(target: Path | str, queue_limit_lines: int = 8192) -> Iterator[AccessLog]:
    made = AccessLog(LogSettings(access=str(target), queue_limit_lines=queue_limit_lines), 1)
    try:
        yield made
    finally:
        made.close()


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def test_every_line_is_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    with access_log(path) as log:
        for number in range(500):
            log.offer(entry(number))
    assert ids(path) == [f"req-{number}" for number in range(500)]
    assert log.counts() == LineCounts(written=500)
    assert path.stat().st_mode & 0o777 & ~0o640 == 0


def test_a_line_tells_the_time_of_the_wall(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    before = time.gmtime(time.time() - 1)
    with access_log(path) as log:
        log.offer(entry())
    said = json.loads(path.read_text())["time"]
    assert time.strftime("%Y-%m-%dT%H:%M:%S", before) <= said
    assert said <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))


@pytest.mark.slow
def test_a_file_that_was_renamed_is_made_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    with access_log(path) as log:
        log.offer(entry(1))
        until(lambda: log.counts().written == 1)
        path.rename(old)
        log.offer(entry(2))
    assert (ids(old), ids(path)) == (["req-1"], ["req-2"])


@pytest.mark.row("O5")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_costs_the_lines_alone() -> None:
    with access_log("/dev/full") as log:
        for number in range(100):
            log.offer(entry(number))
    assert log.counts() == LineCounts(failed=100)


_FULL_IN_THE_MIDDLE = """
import resource, sys, time
from tokenlane.config.settings import LogSettings
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.log.lines import Entry
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
log = AccessLog(LogSettings(access=sys.argv[1]))
def offer(count):
    for number in range(count):
        log.offer(Entry(0.0, "failed", b"x", "other", "demo", 502, "ok", 0.1, [0.01]))
offer(20)
while log.counts().failed + log.counts().written < 20: time.sleep(0.01)
before = log.counts().written
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
offer(3)
log.close()
print(log.counts().written - before)
"""


@pytest.mark.slow
def test_after_a_line_that_was_cut_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    argv = [sys.executable, "-c", _FULL_IN_THE_MIDDLE, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    written = int(done.stdout)
    lines = path.read_text().splitlines()
    assert path.stat().st_size > 1000
    assert written == 3
    for line in lines[-3:]:
        assert json.loads(line)["request_id"] == "x"
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(lines[-4])


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        log = AccessLog(LogSettings(access=str(path), queue_limit_lines=100))
        offered = 0
        while not log.counts().full:
            log.offer(entry(offered))
            offered += 1
            assert offered < 1_000_000
        began_s = time.monotonic()
        log.close()
        assert time.monotonic() - began_s < PATIENCE_S
        counts = log.counts()
        assert counts.written + counts.full + counts.failed == offered
        assert counts.failed > 0
        taken = os.read(reader, 1 << 20)
        assert len(taken.splitlines()) == counts.written
        assert all(json.loads(line) for line in taken.splitlines())
    finally:
        os.close(reader)


@pytest.mark.slow
def test_a_reader_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with access_log(path) as log:
        os.close(reader)
        log.offer(entry(1))
        until(lambda: log.counts().failed == 1)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        log.offer(entry(2))
        until(lambda: log.counts().written == 1)
    assert json.loads(os.read(reader, 4096))["request_id"] == "req-2"
    os.close(reader)


@pytest.mark.parametrize("target", ["/no/such/folder/access.log", "/"])
def test_what_cannot_be_opened_is_said_at_once(target: str) -> None:
    with pytest.raises(ConfigError, match=rf"log.access: {target} cannot be written \("):
        AccessLog(LogSettings(access=target))
    with pytest.raises(ConfigError, match=rf"log.access: {target} cannot be written \("):
        check_target(target)


def test_a_check_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    check_target(str(path))
    assert not path.exists()
    path.write_text("a line\n")
    check_target(str(path))
    assert path.read_text() == "a line\n"


def test_a_line_that_cannot_be_made_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    with access_log(path) as log:
        log.offer(None)  # type: ignore[arg-type]
        log.offer(entry(2))
    assert ids(path) == ["req-2"]
    assert log.counts() == LineCounts(written=1, failed=1)


@pytest.mark.slow
def test_text_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    try:
        with access_log(os.ttyname(theirs)) as log:
            log.offer(entry(7))
            until(lambda: log.counts().written == 1)
        said = os.read(ours, 4096).decode()
        assert " 502 other demo " in said
        assert said.endswith("w1 req-7\r\n")
    finally:
        os.close(ours)
        os.close(theirs)

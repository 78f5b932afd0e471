"""A real Prometheus server (from PATH) with the shipped configuration, and its query API.

Invariants:
- The configuration is deploy/prometheus as shipped, but for the targets and the two intervals.
- Port, data and configuration are its own; all of it is gone at the end of the `with`.
"""

import http.client
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import yaml

from bench.tools.paths import ROOT
from bench.tools.processes import BenchError

SHIPPED = ROOT / "deploy" / "prometheus"
_DEADLINE_S = 20.0
_ALIGNED_S = 0.01  # Prometheus moves timestamps of scrapes by up to 2 ms, to store them smaller


class Series(msgspec.Struct, frozen=True):
    """One series of an answer. values: (Unix time in seconds, value)."""

    labels: dict[str, str]
    values: list[tuple[float, float]]


def available() -> bool:
    """Whether Prometheus is installed here."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


class Prometheus:
    """`with Prometheus([8081]) as prometheus: prometheus.query("up")`. ports: admin ports."""

    def __init__(self, ports: Sequence[int], interval_s: float = 0.5) -> None:
        self._ports = ports
        self._interval_s = interval_s
        self.port = 0

    def __enter__(self) -> Self:
        if not available():
            raise BenchError("prometheus not found: install with 'apt-get install prometheus'")
        self._folder = Path(tempfile.mkdtemp(prefix="tokenlane-prometheus-"))
        log = self._folder / "log"
        try:
            config = self._configure()
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    [
                        "prometheus",
                        f"--config.file={config}",
                        f"--storage.tsdb.path={self._folder / 'data'}",
                        "--web.listen-address=127.0.0.1:0",
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            try:
                self._wait_ready(log)
            except BaseException:
                self._stop()
                raise
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        shutil.rmtree(self._folder)

    def _configure(self) -> Path:
        folder = self._folder / "config"
        shutil.copytree(SHIPPED, folder)
        path = folder / "prometheus.yml"
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        interval = f"{round(self._interval_s * 1000)}ms"
        config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
        config["global"]["scrape_timeout"] = interval
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        targets = [{"targets": [f"127.0.0.1:{port}" for port in self._ports]}]
        (folder / "targets.yml").write_text(yaml.safe_dump(targets), encoding="utf-8")
        return path

    def _wait_ready(self, log: Path) -> None:
        """Reads from its log which port it got, then waits until it answers there."""
        until_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until_s:
            said = log.read_text(encoding="utf-8")
            if self._process.poll() is not None:
                raise BenchError(f"prometheus ended at its start:\n{said[-2000:]}")
            found = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', said)
            if found is not None:
                self.port = int(found[1])
                try:
                    self._get("/-/ready")
                except (OSError, BenchError):
                    pass
                else:
                    return
            time.sleep(0.05)
        raise BenchError(f"prometheus did not become ready:\n{log.read_text()[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_DEADLINE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise BenchError(f"prometheus answers {answer.status} to {path}: {body[:500]!r}")
        return body

    def ask(self, path: str, **words: Any) -> Any:
        """`data` of an answer of its API, /api/v1/PATH."""
        return json.loads(self._get(f"/api/v1/{path}?{urllib.parse.urlencode(words)}"))["data"]

    def query(self, expr: str) -> list[Series]:
        """An expression now: an instant vector, or the samples of a range."""
        return _series(self.ask("query", query=expr)["result"])

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """An expression over time."""
        asked = {"query": expr, "start": start_s, "end": end_s, "step": step_s}
        return _series(self.ask("query_range", **asked)["result"])

    def wait_scrapes(self, count: int) -> None:
        """Returns once every target was scraped so often. The first time takes some seconds:
        Prometheus looks for new targets every 5 s."""
        until_s = time.monotonic() + _DEADLINE_S
        enough = f'count(count_over_time(up{{job="tokenlane"}}[1h]) >= {count})'
        while True:
            found = self.query(enough)
            if found and found[0].values[0][1] == len(self._ports):
                return
            if time.monotonic() > until_s:
                raise BenchError("prometheus does not scrape the gateway")
            time.sleep(self._interval_s / 5)

    def scraped_since(self, moment_s: float) -> bool:
        """Whether every target was scraped well, by a scrape that began after this Unix time."""
        # Of a bare selector only: of an expression, timestamp() is that of the question.
        samples = self.query('timestamp(up{job="tokenlane"}) and on (instance) up == 1')
        return len(samples) == len(self._ports) and all(
            series.values[0][1] > moment_s + _ALIGNED_S for series in samples
        )

    def wait_scrape(self) -> None:
        """Returns once what is true now was scraped."""
        began_s = time.time()
        until_s = time.monotonic() + _DEADLINE_S
        while not self.scraped_since(began_s):
            if time.monotonic() > until_s:
                raise BenchError("prometheus does not scrape the gateway")
            time.sleep(self._interval_s / 5)


def _series(result: list[dict[str, Any]]) -> list[Series]:
    made = []
    for one in result:
        pairs = one["values"] if "values" in one else [one["value"]]
        values = [(float(at_s), float(value)) for at_s, value in pairs]
        made.append(Series(one["metric"], values))
    return made

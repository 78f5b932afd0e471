"""The dashboards' queries, plotted: what Grafana would draw, without Grafana.

    python -m bench dashboard [--seconds 90] [--out docs/img/dashboard.png]

Plays the scene of bench.loads.scene under a real Prometheus, with a pause in the load and a killed
worker in it, runs the queries of all boards' panels over that time, and draws them side by side.
"""

import argparse
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from PIL import Image

from bench.loads.scene import kill_worker, scene
from bench.tools.paths import ROOT
from bench.tools.processes import BenchError, say
from bench.tools.prometheus import Prometheus, Series
from scripts.dashboard.boards import BOARDS
from scripts.dashboard.panel import Panel, Query

PICTURE = ROOT / "docs" / "img" / "dashboard.png"
COLUMNS = 4
WINDOW = "10s"
STEP_S = 1.0
INTERVAL_S = 0.5
NAMES = 8  # in a legend
UNITS = {"s": "s", "reqps": "1/s", "cps": "1/s", "percentunit": "share", "bytes": "bytes"}

Drawn = list[tuple[Query, list[Series]]]


def asked(query: Query) -> str:
    """The expression without Grafana's variables."""
    return query.expr.replace("$__rate_interval", WINDOW).replace("$instance", ".*")


def legend(query: Query, labels: dict[str, str]) -> str:
    """The name of a series; the instance, of which there is one here, is left out."""
    names = {**labels, "instance": ""}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: names.get(found[1], ""), query.legend).strip()


def play(seconds: float) -> list[tuple[Panel, Drawn]]:
    """The scene, and what each panel's queries say of it. Panels without data are left out."""
    with tempfile.TemporaryDirectory() as folder, scene(Path(folder)) as (proxy, load):
        assert proxy.admin_port is not None
        with Prometheus([proxy.admin_port], INTERVAL_S) as prometheus:
            prometheus.wait_scrapes(1)
            began_s = time.time()
            with load.running(seconds / 2):
                say(f"load for {seconds / 2:.0f} s, then a worker is killed")
            kill_worker(proxy, 0)
            with load.running(seconds / 2):
                say(f"load for another {seconds / 2:.0f} s")
            prometheus.wait_scrape()
            ended_s = time.time()
            drawn: list[tuple[Panel, Drawn]] = []
            for panel in (panel for board in BOARDS.values() for panel in board.panels()):
                if panel.kind == "stat" or panel in [one for one, _ in drawn]:
                    continue
                found = [
                    (query, prometheus.query_range(asked(query), began_s, ended_s, STEP_S))
                    for query in panel.queries
                ]
                if any(series for _, series in found):
                    drawn.append((panel, [(query, _from(began_s, all_)) for query, all_ in found]))
    return drawn


def _from(began_s: float, found: list[Series]) -> list[Series]:
    """Times from the start of the scene."""
    return [
        Series(one.labels, [(at - began_s, value) for at, value in one.values]) for one in found
    ]


def lines(axes: Any, drawn: Drawn) -> None:
    """A panel's series; those with a unit of their own against an axis on the right."""
    right: Any = axes.twinx() if any(query.right_unit for query, _ in drawn) else None
    for query, found in drawn:
        where = axes if query.right_unit is None else right
        for series in found:
            times, values = zip(*series.values, strict=True)
            style = "-" if where is axes else "--"
            where.plot(times, values, style, linewidth=1, label=legend(query, series.labels))
    handles, labels = axes.get_legend_handles_labels()
    if right is not None:
        more, names = right.get_legend_handles_labels()
        handles, labels = handles + more, labels + names
        right.tick_params(labelsize=7)
        right.set_ylim(bottom=0)
    axes.set_ylim(bottom=0)
    axes.legend(handles[:NAMES], labels[:NAMES], fontsize=6, loc="upper left", framealpha=0.5)


def heatmap(axes: Any, drawn: Drawn) -> None:
    """A histogram over time: a row for each bucket, darker where more fell into it."""
    ((_, found),) = drawn
    found = sorted(found, key=lambda one: float(one.labels["le"]))
    times = sorted({at for one in found for at, _ in one.values})
    below = [0.0] * len(times)
    rows = []
    for one in found:
        values = dict(one.values)
        until = [values.get(at, math.nan) for at in times]
        rows.append([max(0.0, now - before) for now, before in zip(until, below, strict=True)])
        below = until
    axes.imshow(
        rows, aspect="auto", origin="lower", cmap="Oranges", norm=mpl.colors.PowerNorm(0.4),
        extent=(times[0], times[-1], -0.5, len(found) - 0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(found)), [one.labels["le"] for one in found], fontsize=6)


def draw(panels: list[tuple[Panel, Drawn]], path: Path) -> None:
    """One picture of all panels."""
    rows = math.ceil(len(panels) / COLUMNS)
    figure, plots = plt.subplots(rows, COLUMNS, figsize=(18, 2.8 * rows), squeeze=False)
    for axes in plots.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (panel, drawn) in zip(plots.flat, panels, strict=False):
        unit = UNITS.get(panel.unit)
        axes.set_title(f"{panel.title}, {unit}" if unit else panel.title, fontsize=9)
        axes.tick_params(labelsize=7)
        if panel.kind == "heatmap":
            heatmap(axes, drawn)
        else:
            lines(axes, drawn)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=70)
    plt.close(figure)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(64)
    few.save(path, optimize=True)


def main() -> int:
    """Plays and draws."""
    parser = argparse.ArgumentParser(
        prog="python -m bench dashboard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=90.0, metavar="S")
    parser.add_argument("--out", type=Path, default=PICTURE, metavar="FILE")
    options = parser.parse_args()
    try:
        panels = play(options.seconds)
    except BenchError as error:
        say(f"dashboard: {error}")
        return 1
    draw(panels, options.out)
    say(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

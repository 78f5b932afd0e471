"""The pictures of a finding: PNG files, one for each of its plots."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.tools.finding import Finding, Plot
from bench.tools.statistics import cell

COLORS = {
    "tokenlane": "#1668b8",
    "tokenlane with tokenizers": "#63a0d4",
    "as shipped": "#1668b8",
    "aiohttp": "#9a9a9a",
    "nginx direct": "#d0d0d0",
    "inline": "#c8442d",
    "inline twin": "#c8442d",
    "published": "#555555",
}
FLOOR = 1e-6  # what a logarithmic axis can still show


def draw(found: Finding, folder: Path) -> list[Path]:
    """NAME-1.png and so on; where they are."""
    paths = []
    for number, plot in enumerate(found.plots, 1):
        path = folder / f"{found.name}-{number}.png"
        _draw(plot, path)
        paths.append(path)
    return paths


def _draw(plot: Plot, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.5))
    if plot.kind == "bars":
        _bars(axes, plot)
    else:
        _curves(axes, plot)
    if "x" in plot.log:
        axes.set_xscale("log")
    if "y" in plot.log:
        axes.set_yscale("log")
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.set_title(plot.title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, which="major", alpha=0.3)
    if len(plot.series) > 1:
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _curves(axes: Any, plot: Plot) -> None:
    for one in plot.series:
        shown = [
            (max(x, FLOOR) if "x" in plot.log else x, max(y, FLOOR) if "y" in plot.log else y)
            for x, y in one.points
        ]
        if not shown:
            continue
        dashed = one.name.startswith("published") or one.name.startswith("Kingman")
        form = "." if plot.kind == "dots" else "--" if dashed else "o-"
        xs, ys = zip(*shown, strict=True)
        axes.plot(xs, ys, form, markersize=4, label=one.name, color=COLORS.get(one.name))


def _bars(axes: Any, plot: Plot) -> None:
    width = 0.8 / max(1, len(plot.series))
    for turn, one in enumerate(plot.series):
        left = (turn - (len(plot.series) - 1) / 2) * width
        places = [x + left for x, _ in one.points]
        heights = [max(y, FLOOR) if "y" in plot.log else y for _, y in one.points]
        alone = len(plot.series) == 1
        colors = [COLORS.get(plot.labels[int(x)], "#6f8fb0") for x, _ in one.points]
        drawn = axes.bar(places, heights, width * 0.95, label=one.name,
                         color=colors if alone else COLORS.get(one.name))  # fmt: skip
        axes.bar_label(drawn, [cell(y) for _, y in one.points], fontsize=7)
    axes.set_xticks(range(len(plot.labels)), plot.labels, fontsize=8)

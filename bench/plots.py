"""The pictures of a result: PNG files beside its JSON."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

COLORS = {
    "tokenlane": "#1668b8",
    "aiohttp": "#9a9a9a",
    "nginx direct": "#d0d0d0",
    "inline twin": "#c8442d",
    "quiet": "#7fb069",
}


def bars(axes: Any, values: dict[str, float], title: str) -> None:
    """One bar per proxy with its number above it."""
    names = list(values)
    drawn = axes.bar(
        names, list(values.values()), color=[COLORS.get(name, "#888") for name in names]
    )
    axes.bar_label(drawn, fmt="{:,.4g}")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> None:
    """Writes the file and forgets the figure."""
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def throughput(result: dict[str, Any], path: Path) -> None:
    """Requests per second by body size."""
    figure, plots = plt.subplots(1, len(result["loads"]), figsize=(10, 4), squeeze=False)
    for axes, (load, values) in zip(plots[0], result["loads"].items(), strict=True):
        rates = {name: one["requests_per_s"] for name, one in values["proxies"].items()}
        bars(axes, rates, f"requests/s on one core, {load} bodies")
    save(figure, path)


def streams(result: dict[str, Any], path: Path) -> None:
    """CPU per chunk and added time to the first token."""
    proxies = {name: one for name, one in result["proxies"].items() if name != "direct"}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4))
    bars(left, {name: one["chunk_us"] for name, one in proxies.items()}, "CPU µs per chunk")
    for axes, share in ((middle, "p50"), (right, "p99")):
        added = {name: one[f"added_{share}_ms"] for name, one in proxies.items()}
        bars(axes, added, f"added time to first token, {share}, ms")
    save(figure, path)


def bursts(result: dict[str, Any], path: Path) -> None:
    """Latency of each small request over the time at which it was due."""
    figure, axes = plt.subplots(figsize=(10, 5))
    for name, one in result["runs"].items():
        if name == "quiet" or not one["points"]:
            continue
        due_s, waited_s = zip(*one["points"], strict=True)
        waited_ms = [max(value * 1e3, 0.05) for value in waited_s]
        axes.plot(due_s, waited_ms, ".", markersize=3, label=name, color=COLORS.get(name, "#888"))
    settings = result["settings"]
    axes.set_yscale("log")
    axes.set_xlabel("time at which the request was due, s")
    axes.set_ylabel("latency, ms")
    axes.set_title(
        f"small requests at 100/s while {settings['burst']} prompts of "
        f"{settings['tokens']:,} tokens arrive each second"
    )
    axes.legend()
    axes.grid(visible=True, which="major", alpha=0.3)
    save(figure, path)

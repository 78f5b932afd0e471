"""The plot of tokenlane beside other routers, out of a finding of `throughput`:

    make bench-routers
    python -m bench throughput --full --json bench/results/throughput.json
    python -m scripts.peers bench/results/throughput.json       (docs/img/peers.png)

Invariants:
- Axes are linear and begin at 0; each bar carries its figure.
- A finding without the other routers is refused: it compares nothing.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "img" / "peers.png"
LOADS = ("300 B", "16 KiB", "390 KB")
OWN = "tokenlane"
OTHERS = frozenset({"sglang-router", "vllm-router"})
# Bars that a stranger need not read: another build of ours.
LEFT_OUT = frozenset({"tokenlane-plain"})


def costs(finding: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the CPU of a request in µs, by load and router.

    Raise SystemExit where the finding lacks a load or one of the other routers.
    """
    drawn = {plot["title"]: plot for plot in finding["plots"]}
    found = {}
    for load in LOADS:
        plot = drawn.get(f"CPU of a request, {load} bodies")
        names = plot["labels"] if plot else []
        if missing := {OWN, *OTHERS} - set(names):
            raise SystemExit(f"{load}: the finding lacks {', '.join(sorted(missing))}")
        values = [value for _, value in plot["series"][0]["points"]] if plot else []
        bars = zip(names, values, strict=True)
        found[load] = {name: value for name, value in bars if name not in LEFT_OUT}
    return found


def draw(found: dict[str, dict[str, float]], to: Path) -> None:
    """Draw one panel of bars for each load."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(9.0, 2.4))
    for axes, (load, bars) in zip(panels, found.items(), strict=True):
        names = list(bars)
        places = [-place for place in range(len(names))]
        colors = ["#2e6f6e" if name == OWN else "#b8c4c4" for name in names]
        axes.barh(places, list(bars.values()), 0.7, color=colors)
        for place, value in zip(places, bars.values(), strict=True):
            axes.text(value, place, f" {value:,.0f}", va="center", fontsize=8)
        axes.set_yticks(places, names, fontsize=8)
        axes.set_xlim(0, 1.25 * max(bars.values()))
        axes.set_xlabel(f"CPU µs a request, {load} bodies", fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(to, dpi=110)


if __name__ == "__main__":
    draw(costs(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), PICTURE)

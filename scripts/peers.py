"""The plot of tokenlane beside other routers, out of the first table of docs/performance.md:

    python -m scripts.peers       (docs/img/peers.png)

Invariants:
- It shows all rows of that table, those that are dear for tokenlane too.
- Axes are linear and begin at 0; each bar carries its figure.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "img" / "peers.png"
OWN = "tokenlane"
# What is drawn by column of the table; plain Python is another build of ours.
COLUMNS = {
    "gateway, compiled": OWN,
    "aiohttp proxy": "aiohttp",
    "a pipe": "pipe",
    "SGLang's router": "sglang-router",
    "vLLM's router": "vllm-router",
}
# The rows, in the order of the table, as a panel names them.
ROWS = {
    "300 B, seen before": "300 B, seen before",
    "300 B, all new": "300 B, all new",
    "16 KiB English, 12 shared and 4 new": "16 KiB English",
    "16 KiB program text, likewise": "16 KiB program text",
    "390 KB English, next turns of conversations of 100": "390 KB English",
    "390 KB program text, likewise": "390 KB program text",
    "390 KB program text, of agents that call a tool each turn": "390 KB with calls",
}


def costs() -> dict[str, dict[str, float]]:
    """Return the CPU of a request in µs, by row of the table and router."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = re.search(r"^\| bodies \| gateway, compiled .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()]
    header, _, *rows = [cells for cells in lines if cells]
    found = {}
    for row in rows:
        by_column = dict(zip(header, row, strict=True))
        found[by_column["bodies"]] = {
            name: float(by_column[column].replace(",", "")) for column, name in COLUMNS.items()
        }
    assert list(found) == list(ROWS), found
    return found


def draw(found: dict[str, dict[str, float]], to: Path) -> None:
    """Draw one panel of bars for each row; the two of a size stand below each other."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 4, figsize=(12.0, 4.6))
    panels = grid.T.flatten()
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    for axes, (row, bars) in zip(panels, found.items(), strict=False):
        names = list(bars)
        places = [-place for place in range(len(names))]
        colors = ["#2e6f6e" if name == OWN else "#b8c4c4" for name in names]
        axes.barh(places, list(bars.values()), 0.7, color=colors)
        for place, value in zip(places, bars.values(), strict=True):
            axes.text(value, place, f" {value:,.0f}", va="center", fontsize=8)
        axes.set_yticks(places, names, fontsize=8)
        axes.set_xlim(0, 1.25 * max(bars.values()))
        axes.set_xlabel(f"CPU µs a request, {ROWS[row]}", fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(to, dpi=110)


if __name__ == "__main__":
    draw(costs(), PICTURE)

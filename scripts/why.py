"""The README's plot, out of the table `bursts` in docs/bench.md:

    python -m scripts.why          (docs/img/why.png; after `make bench-docs`)

Invariants:
- It shows figures of that table and no others.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = {
    "quiet": "small requests alone",
    "tokenlane": "beside 20 prompts of 100,000 tokens\na second: tokenlane",
    "inline twin": "the same, with prompts tokenized\non the event loop",
}


def figures() -> dict[str, tuple[float, float]]:
    """p50 and p99 of the small requests in ms, by run."""
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    table = text.partition("### bursts:")[2].partition("\n###")[0]
    rows = re.findall(
        r"^\| ([a-z ]+), small \| [^|]+\| ([\d.,]+) \| ([\d.,]+) \|", table, re.MULTILINE
    )
    found = {
        run: (float(p50.replace(",", "")), float(p99.replace(",", ""))) for run, p50, p99 in rows
    }
    assert found.keys() == RUNS.keys(), found
    return found


def main() -> None:
    """Writes the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8.0, 2.6))
    found = figures()
    most = max(p99 for _, p99 in found.values())
    for place, (p50, p99) in enumerate(found.values()):
        for offset, value, color in ((0.19, p50, "#8fbcbb"), (-0.19, p99, "#2e6f6e")):
            axes.barh(-place + offset, value, 0.36, color=color)
            shown = f"{value:.1f} ms" if value < 100 else f"{value / 1000:.1f} s"
            axes.text(value + most / 150, -place + offset, shown, va="center", fontsize=9)
    axes.set_xlim(0, 1.15 * most)
    axes.set_yticks([-place for place in range(len(RUNS))], list(RUNS.values()), fontsize=9)
    axes.set_xlabel("ms until a small request is answered: median (light), p99 (dark)", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "img" / "why.png", dpi=110)


if __name__ == "__main__":
    main()

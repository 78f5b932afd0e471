"""The README's plot, out of the table of bursts in docs/performance.md:

    python -m scripts.why          (docs/img/why.png)

Invariants:
- It shows figures of that table and no others.
- Both rows with long prompts encode them with `tokenizers`: they differ by the place alone.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUIET, GATEWAY, TWIN = "no bursts", "gateway, encoding with `tokenizers`", "inline twin, the same"
RUNS = {
    QUIET: "small requests alone",
    GATEWAY: "beside 20 prompts of 100,000 tokens\na second: tokenlane with tokenizers",
    TWIN: "the same encoder\non the event loop",
}
MS = {"ms": 1.0, "s": 1_000.0}


def figures() -> dict[str, tuple[float, float]]:
    """p50 and p99 of the small requests in ms, by run."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = text.partition("| | small p50 | small p99 |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) (m?s) \| ([\d.]+) (m?s) \|", table, re.MULTILINE)
    found = {
        run: (float(p50) * MS[of_p50], float(p99) * MS[of_p99])
        for run, p50, of_p50, p99, of_p99 in rows
    }
    assert found.keys() == RUNS.keys(), found
    return found


def shown(ms: float) -> str:
    """Return a time as the picture and the README have it."""
    if ms < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:.1f} s"


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
            at = value + most / 150
            axes.text(at, -place + offset, shown(value), va="center", fontsize=9)
    axes.set_xlim(0, 1.15 * most)
    axes.set_yticks([-place for place in range(len(RUNS))], list(RUNS.values()), fontsize=9)
    axes.set_xlabel("ms until a small request is answered: median (light), p99 (dark)", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "img" / "why.png", dpi=110)


if __name__ == "__main__":
    main()

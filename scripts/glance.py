"""Draws docs/img/glance.png: the row that every board begins with, under a load of conversations.

python -m scripts.glance         (needs Prometheus)
"""

import asyncio
import time
from urllib.parse import urlsplit

from matplotlib import pyplot as plt

from bench.experiments.dashboard import INTERVAL_S, PICTURE, STEP_S, UNITS, Drawn, asked, lines
from bench.tools.prometheus import Prometheus, Series
from scripts.dashboard.glance import GLANCE
from scripts.picture import load, served

LOAD_S = 90.0


async def measure() -> list[Drawn]:
    """Return what the queries of each panel say of the load, by seconds from its start."""
    async with served() as (data, admin):
        with Prometheus([urlsplit(admin).port or 0], INTERVAL_S) as prometheus:
            began_s = time.time()
            async with load(data):
                await asyncio.sleep(LOAD_S)

            def found(expr: str) -> list[Series]:
                series = prometheus.query_range(expr, began_s, began_s + LOAD_S, STEP_S)
                return [
                    Series(one.labels, [(at_s - began_s, value) for at_s, value in one.values])
                    for one in series
                ]

            return [
                [(query, found(asked(query))) for query in panel.queries] for panel in GLANCE.panels
            ]


def main() -> None:
    """Write the picture."""
    figure, plots = plt.subplots(1, len(GLANCE.panels), figsize=(14, 2.8), layout="constrained")
    for axes, panel, drawn in zip(plots, GLANCE.panels, asyncio.run(measure()), strict=True):
        axes.set_title(f"{panel.title}, {UNITS.get(panel.unit, '1/s')}", fontsize=11)
        axes.set_xlabel("s", fontsize=9)
        lines(axes, drawn)
        axes.legend(fontsize=9)
    figure.savefig(PICTURE.with_name("glance.png"), dpi=90)


if __name__ == "__main__":
    main()

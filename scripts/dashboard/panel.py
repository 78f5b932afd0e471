"""The words of a dashboard: boards of rows of panels of queries. Values only."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "heatmap"]
Color = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression. legend: Grafana's form, {{label}}. right_unit: drawn against an axis of
    its own on the right, in this unit."""

    expr: str
    legend: str = ""
    right_unit: str | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. unit: Grafana's word for it. help: what to read from it, in a sentence or two.

    steps: (from this value, color), the first from minus infinity. stacked: areas on each other.
    width: of Grafana's 24 columns.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    help: str
    kind: Kind = "timeseries"
    steps: tuple[tuple[float | None, Color], ...] = ()
    stacked: bool = False
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. uid: stays, for links."""

    uid: str
    title: str
    rows: tuple[Row, ...]

    def panels(self) -> list[Panel]:
        """All of them, in order."""
        return [panel for row in self.rows for panel in row.panels]


WINDOW = "$__rate_interval"
WHERE = 'instance=~"$instance"'


def where(matchers: str = "") -> str:
    """The selector of what the board looks at, and more matchers."""
    return f"{{{WHERE}{',' + matchers if matchers else ''}}}"


def _sum(by: str, of: str) -> str:
    return f"sum by ({by}) ({of})" if by else f"sum({of})"


def rate(name: str, by: str = "", matchers: str = "") -> str:
    """A counter's growth per second, summed."""
    return _sum(by, f"rate({name}{where(matchers)}[{WINDOW}])")


def _once(by: str, of: str) -> str:
    return f"max by ({by}) (sum by (instance, {by}) ({of}))"


def told(name: str, by: str) -> str:
    """A gauge that each gateway reads of the same replica, summed over its ranks: several gateways
    read the same, so it is the highest of them and not their sum."""
    return _once(by, f"{name}{where()}")


def told_rate(name: str, by: str) -> str:
    """The growth per second of a counter that each gateway keeps of the same replica, likewise."""
    return _once(by, f"rate({name}{where()}[{WINDOW}])")


def quantile(share: float, name: str, by: str = "") -> str:
    """A quantile of a histogram's recent observations."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, {rate(name + '_bucket', labels)})"


def total(name: str, by: str = "", matchers: str = "") -> str:
    """A gauge, summed."""
    return _sum(by, f"{name}{where(matchers)}")

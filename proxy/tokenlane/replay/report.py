"""What replays of one trace are told by: figures beside their bounds, as JSON, table and plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokenlane.config.settings import RoutingSettings
from tokenlane.errors import ConfigError
from tokenlane.replay.baselines import BASELINES
from tokenlane.replay.bounds import oracle, pooled_hit
from tokenlane.replay.gateways import GatewayShape, replay_gateways
from tokenlane.replay.run import Figures, FleetShape, replay
from tokenlane.replay.timed_fleet import Served
from tokenlane.replay.trace import Trace


class ReplayReport(NamedTuple):
    """policies: by name, what became of every request. gateways: None where there is one that
    nobody tells anything."""

    trace: Trace
    shape: FleetShape
    pooled_bound_hit: float
    oracle: list[Served]
    policies: dict[str, list[Served]]
    gateways: GatewayShape | None = None

    @classmethod
    def of(
        cls,
        trace: Trace,
        shape: FleetShape,
        settings: RoutingSettings,
        names: Sequence[str],
        gateways: GatewayShape | None = None,
    ) -> "ReplayReport":
        """Replays the trace once for each policy. Raises ConfigError for an unknown name."""
        policies = {}
        for name in names:
            own = msgspec.structs.replace(settings, policy=name)
            rule = BASELINES.get(name)
            if gateways is None:
                policies[name] = replay(trace, shape, own, rule)
            else:
                policies[name] = replay_gateways(trace, shape, gateways, own, rule)
        return cls(
            trace,
            shape,
            pooled_hit(trace, shape.replicas * shape.cache_blocks),
            oracle(trace, shape),
            policies,
            gateways,
        )

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        best = Figures.of(self.oracle, self.shape.replicas)
        policies = {}
        for name, served in self.policies.items():
            figures = Figures.of(served, self.shape.replicas)
            policies[name] = figures._asdict() | {
                "hit_of_pooled": _ratio(figures.hit, self.pooled_bound_hit),
                "ttft_of_oracle": figures.ttft_mean_s / best.ttft_mean_s,
            }
        seen: dict[str, Any] = (
            {} if self.trace.seen_hit is None else {"seen_hit": self.trace.seen_hit}
        )
        if self.gateways is not None:
            seen["gateways"] = self.gateways._asdict()
        return {
            "trace": self.trace.name,
            **seen,
            "replicas": self.shape.replicas,
            "cache_tokens_per_replica": self.shape.cache_blocks * self.trace.block_tokens,
            "pooled_bound_hit": self.pooled_bound_hit,
            "oracle_ttft_mean_s": best.ttft_mean_s,
            "policies": policies,
        }

    def table(self) -> str:
        """For people."""
        told = self.to_json()
        size_tokens = told["cache_tokens_per_replica"]
        lines = [
            (
                f"{told['trace']}: {len(self.trace.requests):,} requests,"
                f" {self.trace.prompt_tokens:,} prompt tokens;"
                f" {told['replicas']} replicas, a cache of {size_tokens:,} tokens each"
            ),
            (
                f"bounds: {told['pooled_bound_hit']:.1%} of the tokens from one pooled cache,"
                f" mean TTFT {told['oracle_ttft_mean_s']:.2f} s with a shared one"
            ),
            *([self.gateways.words()] if self.gateways is not None else []),
            *(
                [f"when it was recorded: {told['seen_hit']:.1%} of the tokens from caches"]
                if "seen_hit" in told
                else []
            ),
            "",
            "policy            hits  of pooled  TTFT mean     p99  of oracle  imbalance",
        ]
        for name, row in told["policies"].items():
            of_pooled = "-" if row["hit_of_pooled"] is None else f"{row['hit_of_pooled']:.1%}"
            lines.append(
                f"{name:<15} {row['hit']:6.1%} {of_pooled:>10}"
                f" {row['ttft_mean_s']:8.2f} s {row['ttft_p99_s']:5.1f} s"
                f" {row['ttft_of_oracle']:9.3f}x {row['imbalance_60s']:9.2f}x"
            )
        return "\n".join(lines)

    def plot(self, path: Path) -> None:
        """TTFT curves and hits as a PNG. Raises ConfigError where matplotlib is missing."""
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to load
        except ImportError:
            raise ConfigError(
                "--plot needs matplotlib, which tokenlane does not bring along:"
                " pip install matplotlib"
            ) from None
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        curves, bars = figure.subplots(1, 2)
        for name, served in [*self.policies.items(), ("shared-cache oracle", self.oracle)]:
            ttfts = sorted(one.ttft_s for one in served)
            shares = [(at + 1) / len(ttfts) for at in range(len(ttfts))]
            style = "--" if served is self.oracle else "-"
            curves.plot(ttfts, shares, style, label=name)
        curves.set(xscale="log", xlabel="time to first token, s", ylabel="share of requests")
        curves.legend(loc="lower right", fontsize="small")
        curves.grid(alpha=0.3)
        names = list(self.policies)
        hits = [Figures.of(self.policies[name], self.shape.replicas).hit for name in names]
        bars.barh(names, [100 * hit for hit in hits])
        bars.axvline(100 * self.pooled_bound_hit, color="black", linestyle="--")
        bars.set(xlabel="prompt tokens found in caches, % (dashed: one pooled cache)")
        bars.invert_yaxis()
        figure.suptitle(f"{self.trace.name}, {self.shape.replicas} replicas")
        try:
            figure.savefig(path, dpi=120)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--plot {path}: cannot be written ({error})") from None


def _ratio(hit: float, bound: float) -> float | None:
    """None where nothing could have been hit."""
    return hit / bound if bound else None

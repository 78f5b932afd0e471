"""What the numbers mean, in plain words. Pure.

Invariants:
- A cache hit rate above 70 % means that caching works, below 50 % that the pool is needed, as in
  the alerts. More than 1 % of the time in stalls above 5 ms is blocking; the alert on the loop's
  time waits for 5 %, since machines in production have neighbours.
- What was not measured is not judged.
"""

from collections.abc import Mapping

from bench.tools.finding import Finding

HITS_WORK, HITS_POOL = 0.70, 0.50
BLOCKING_MS = 5.0
# Share of the time that stalls above BLOCKING_MS may take before it is significant mass.
BLOCKING_SHARE = 0.01


def hits(rate: float) -> str:
    """A cache hit rate in words."""
    if rate > HITS_WORK:
        return f"a cache hit rate of {rate:.0%}, above {HITS_WORK:.0%}: caching works"
    if rate < HITS_POOL:
        return (
            f"a cache hit rate of {rate:.0%}, below {HITS_POOL:.0%}: the caches alone do not carry "
            "the load, the pool is needed"
        )
    return f"a cache hit rate of {rate:.0%}: caching helps, the pool carries the rest"


def blocking(share: float) -> str:
    """The share of time that a loop was held for more than BLOCKING_MS at a time, in words."""
    mass = f"{share:.1%} of the time in stalls above {BLOCKING_MS:g} ms"
    if share > BLOCKING_SHARE:
        return f"{mass}: the loop is blocked"
    return f"{mass}: the loop is free"


def lines(findings: Mapping[str, Finding], failed: Mapping[str, str]) -> list[str]:
    """The verdict, a sentence a line."""
    said = [*_cache(findings), *_loop(findings), *_starved(findings)]
    said += [answer for found in findings.values() for answer in found.answers]
    judged = [one for found in findings.values() for one in found.shapes if one.holds is not None]
    agree = sum(shape.holds is True for shape in judged)
    differ = [
        f"{name} ({shape.claim})"
        for name, found in findings.items()
        for shape in found.shapes
        if shape.holds is False
    ]
    if judged:
        said.append(f"{agree} of {len(judged)} curves have the published shape")
    if differ:
        said.append(f"not as published: {'; '.join(differ)}")
    limits = [
        name
        for name, found in findings.items()
        if any("load generator was at its limit" in remark for remark in found.remarks)
    ]
    if limits:
        said.append(f"the load generator was at its limit in parts of: {', '.join(limits)}")
    if failed:
        said.append(f"not measured here: {', '.join(failed)}")
    return said


def _number(findings: Mapping[str, Finding], name: str, key: str) -> float | None:
    found = findings.get(name)
    return None if found is None else found.numbers.get(key)


def _cache(findings: Mapping[str, Finding]) -> list[str]:
    rate = _number(findings, "cache", "hit_rate")
    return [] if rate is None else [f"agent trace: {hits(rate)}"]


def _loop(findings: Mapping[str, Finding]) -> list[str]:
    said = []
    for name, run in (
        ("inline", "tokenizing where it stands"),
        ("+ permit", "the whole ladder, with the same encoder and short queues"),
        ("as shipped", "as shipped"),
    ):
        share = _number(findings, "ablation", f"{name} blocked")
        if share is not None:
            said.append(f"{run}, at its worst load: {blocking(share)}")
    return said


def _starved(findings: Mapping[str, Finding]) -> list[str]:
    cores = _number(findings, "starvation", "cores_needed")
    if cores is None:
        return []
    return [f"starved of CPU: that load was served without timeouts from {cores:g} core(s) up"]

"""The rows of the live page, each from what was counted in a window. Pure.

Invariants:
- Rows come in an order that does not jump about: by a fixed list, or by what only grows.
"""

from collections.abc import Collection, Mapping
from functools import partial, reduce
from operator import or_

import msgspec

from tokenlane.control.dashboard.live import (
    CandidateRow,
    Count,
    DecisionRow,
    ModelRow,
    RungRow,
    StallRow,
    WorkerRow,
)
from tokenlane.control.dashboard.rates import Window, ratio
from tokenlane.control.dashboard.reasons import sentence
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.fleet_state import IdKind, Proof
from tokenlane.prompt import Rung
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.routing_sample import CandidateSample, RoutingSample

# Of fewer the median says little.
_FEW_ANSWERS = 3
# By its name: where it is not counted there are no rows.
STALLS = "tokenlane_loop_stalls_total"


def failed(window: Window) -> float:
    """Requests that got a 5xx, or less than the answer."""
    return sum(
        grown[0]
        for labels, grown in window.rows(families.REQUESTS.name)
        if labels["status"].startswith("5") or labels["outcome"] in ("upstream_error", "truncated")
    )


def left_out(window: Window) -> dict[str, str]:
    """Why workers leave out a replica that is up, by its id."""
    return {
        replica: why for (replica, why), count in window.gauges(families.LEFT_OUT.name) if count
    }


def ids(proofs: Collection[Proof]) -> str:
    """Return whether a replica makes the gateway's ids: proven, unproven, regained (proven after
    it was lost), or what it makes others of."""
    if refuted := IdKind(reduce(or_, (proof.refuted for proof in proofs), 0)):
        return f"other: {', '.join(kind.label for kind in refuted)}"
    losses = [proof.losses for proof in proofs if proof.proven]
    return "unproven" if not losses else "regained" if any(losses) else "proven"


def times_slower(window: Window) -> dict[str, float]:
    """Return by replica how many times as long as all of a model's its answers take, where that is
    much: as the alert TokenlaneReplicaSlow has it."""
    found: dict[str, float] = {}
    for family, limit in ((families.TPOT.name, 3.0), (families.TTFT.name, 5.0)):
        for model in window.values(family, "model"):
            usual = window.spread(family, model=model).quantile(0.5)
            for replica in window.values(family, "replica"):
                own = window.spread(family, model=model, replica=replica)
                median = own.quantile(0.5)
                if usual and median and own.count >= _FEW_ANSWERS and median / usual > limit:
                    found[replica] = max(found.get(replica, 0.0), median / usual)
    return found


def late(window: Window, share: float, worst_s: float | None, **labels: str) -> float | None:
    """Return a quantile of the loops' lateness, not above the worst as a bucket's bound may be."""
    found = window.spread(families.LOOP_STALL.name, **labels).quantile(share)
    return found if found is None or worst_s is None else min(found, worst_s)


def worker(one: WorkerProcess, window: Window, worst_s: float | None) -> WorkerRow:
    """A worker and its loop. worst_s: how late it was at most."""
    number = str(one.number)
    return WorkerRow(
        worker=one.number,
        state=one.state,
        pid=one.pid,
        restarts=one.restarts,
        late_p50_s=late(window, 0.5, worst_s, worker=number),
        late_p99_s=late(window, 0.99, worst_s, worker=number),
        late_worst_s=worst_s,
    )


def stalls(window: Window, longest: Mapping[str, float]) -> list[StallRow]:
    """Causes, the most frequent since the start first. longest: by cause, the longest lately."""
    total = partial(window.total, STALLS)
    rows = [
        StallRow(cause=cause, count=found, total=total(cause=cause), worst_s=longest.get(cause))
        for cause, found in window.by(STALLS, "cause").items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.cause))


def rungs(window: Window) -> list[RungRow]:
    """The ladder, from the top."""
    spreads = {rung: window.spread(families.TOKENIZE.name, rung=rung.value) for rung in Rung}
    requests = sum(spread.count for spread in spreads.values())
    return [
        RungRow(
            rung=rung.value,
            per_s=round(spread.count / window.span_s, 3),
            share=ratio(spread.count, requests),
            p50_s=spread.quantile(0.5),
            p99_s=spread.quantile(0.99),
        )
        for rung, spread in spreads.items()
    ]


def counts(by_word: Mapping[str, float]) -> list[Count]:
    """Words by how often they were said; those that were not are left out."""
    everything = sum(by_word.values())
    rows = [
        Count(word=word, count=found, share=ratio(found, everything))
        for word, found in by_word.items()
        if found
    ]
    return sorted(rows, key=lambda row: (-row.count, row.word))


def models(window: Window) -> list[ModelRow]:
    """Models that were ever asked for."""
    rows = []
    for model in window.values(families.OUTPUT_TOKENS.name, "model"):
        ttft = window.spread(families.TTFT.name, model=model)
        tpot = window.spread(families.TPOT.name, model=model)
        per_s = partial(window.per_s, model=model)
        rows.append(
            ModelRow(
                model=model,
                ttft_p50_s=ttft.quantile(0.5),
                ttft_p99_s=ttft.quantile(0.99),
                tpot_p50_s=tpot.quantile(0.5),
                input_tokens_per_s=round(per_s(families.PROMPT_TOKENS.name), 1),
                output_tokens_per_s=round(per_s(families.OUTPUT_TOKENS.name), 1),
            )
        )
    return rows


def decision(number: int, sample: RoutingSample, names: Mapping[int, str]) -> DecisionRow:
    """A sample with its replicas named and its reason as a sentence. names: ids by slot."""

    def name(slot: int) -> str:
        return names.get(slot, f"slot {slot}")

    def seen(row: CandidateSample) -> CandidateRow:
        fields = msgspec.structs.asdict(row) | {"cost": round(row.cost, 1)}
        return CandidateRow(replica=name(fields.pop("slot")), **fields)

    said = msgspec.structs.asdict(sample) | {"candidates": list(map(seen, sample.candidates))}
    del said["slot"]
    return DecisionRow(number=number, replica=name(sample.slot), why=sentence(sample, name), **said)

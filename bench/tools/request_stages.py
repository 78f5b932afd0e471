"""A request's stages, means of a run in ms: what the client, the gateway and vLLM say. Pure.

Invariants:
- Every stage is somebody's own clock; two clocks are only subtracted as lengths of time.
- What vLLM counts from a request's arrival, less its queue, prefill and decode, is its front end:
  template, tokenizing, the way to the engine and back. What nobody counts is HTTP and waiting.
"""

import json
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from bench.tools.scrape import Samples
from bench.tools.statistics import minus, ratio

STAGES = (
    "serialize", "gateway", "HTTP and waiting", "template, tokenize, hand over", "queue", "prefill",
    "decode", "parse",
)  # fmt: skip
# Of the gateway, until a request has left it.
GATEWAY_STAGES = ("read", "inspect", "tokens", "route")
Stages = dict[str, float | None]
Given = Mapping[str, float | None]


def events(answer: bytes) -> list[dict[str, Any]]:
    """Return the JSON events of a stream, chunk lines or not."""
    lines = (line for line in answer.splitlines() if line.startswith(b"data: {"))
    return [json.loads(line[6:]) for line in lines]


def own_metrics(answers: Iterable[bytes]) -> dict[str, float | None]:
    """Return the means of vLLM's per-request metrics over these answers, in ms, by stage."""
    keys = {"queue": "queue_time_ms", "prefill": "time_to_first_token_ms",
            "decode": "generation_time_ms"}  # fmt: skip
    found: dict[str, list[float]] = {stage: [] for stage in keys}
    for answer in answers:
        for event in events(answer):
            for stage, key in keys.items():
                if (value := (event.get("metrics") or {}).get(key)) is not None:
                    found[stage].append(value)
    return {stage: fmean(values) if values else None for stage, values in found.items()}


def mean_ms(before: Samples, after: Samples, name: str, **labels: str) -> float | None:
    """Return the mean of a histogram's observations between two scrapes, in ms."""

    def grown(suffix: str) -> float:
        return sum(
            value - before.get((sample, given), 0.0)
            for (sample, given), value in after.items()
            if sample == name + suffix and labels.items() <= dict(given).items()
        )

    mean_s = ratio(grown("_sum"), grown("_count"))
    return None if mean_s is None else mean_s * 1e3


def gateway_ms(before: Samples, after: Samples) -> float:
    """Return what a request spent in the gateway before it was sent on."""
    stages = (mean_ms(before, after, "tokenlane_stage_seconds", stage=one)
              for one in GATEWAY_STAGES)  # fmt: skip
    return sum(one for one in stages if one is not None)


def combined(
    client_ms: float, arrived_ms: float | None, gateway: float, engine: Given, alone: Given
) -> Stages:
    """Return all stages of a request. client_ms: from its sending to its last byte; arrived_ms:
    what vLLM counts from its arrival; engine: its queue, prefill and decode; alone: serialize and
    parse."""
    inside = [engine.get(stage) for stage in ("queue", "prefill", "decode")]
    known = sum(one for one in inside if one is not None)
    return {
        "serialize": alone.get("serialize"),
        "gateway": gateway,
        "HTTP and waiting": minus(client_ms - gateway, arrived_ms),
        "template, tokenize, hand over": minus(arrived_ms, known),
        "queue": inside[0],
        "prefill": inside[1],
        "decode": inside[2],
        "parse": alone.get("parse"),
    }


def scaled(short: Given, long: Given, tokens: tuple[int, int], at: int) -> Stages:
    """Return the stages of a longer context, by the line through two that were measured."""
    found: Stages = {}
    for stage, value in short.items():
        slope = ratio(minus(long.get(stage), value), tokens[1] - tokens[0])
        if value is None or slope is None:
            found[stage] = None
        else:
            found[stage] = max(0.0, value + slope * (at - tokens[0]))
    return found

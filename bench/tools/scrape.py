"""The gateway's own metrics before and after a measurement: which rungs took the requests."""

from prometheus_client.parser import text_string_to_metric_families

from bench.tools.client import fetch

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Samples:
    """Each sample of an exposition by its name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def samples(admin_port: int) -> Samples:
    """What /metrics says now; nothing if it does not answer."""
    answer = fetch(admin_port, "/metrics")
    return parse(answer.body.decode()) if answer.status == 200 else {}


def difference(before: Samples, after: Samples, name: str, label: str) -> dict[str, float]:
    """How much a counter grew, by the values of one of its labels, largest first."""
    grown: dict[str, float] = {}
    for (sample, labels), value in after.items():
        if sample == name:
            key = dict(labels).get(label, "")
            grown[key] = grown.get(key, 0.0) + value - before.get((sample, labels), 0.0)
    return dict(sorted(grown.items(), key=lambda item: -item[1]))

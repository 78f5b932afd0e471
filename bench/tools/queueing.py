"""Waiting time by Kingman's formula, and what it needs from a run. Pure."""

import itertools
from collections.abc import Sequence


def variation(values: Sequence[float]) -> float | None:
    """Squared coefficient of variation: variance over mean squared; None of fewer than two."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    if mean == 0:
        return None
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / mean**2


def gaps_s(due_s: Sequence[float]) -> list[float]:
    """Times between arrivals, in order."""
    return [after - before for before, after in itertools.pairwise(sorted(due_s))]


def met_nobody(calls: Sequence[tuple[float, float]]) -> list[bool]:
    """Of each (due, done): whether all that were due before it were done when it was due. Then it
    waited for nobody, and what it took is what a request takes that need not wait."""
    found = [False] * len(calls)
    free_s = 0.0
    for index in sorted(range(len(calls)), key=lambda index: calls[index][0]):
        due_s, done_s = calls[index]
        found[index] = due_s >= free_s
        free_s = max(free_s, done_s)
    return found


def kingman_s(
    utilisation: float, arrival_variation: float, service_variation: float, service_s: float
) -> float | None:
    """Mean time in the queue of a G/G/1 server: rho/(1-rho) x (ca2+cs2)/2 x service time.

    None where the queue grows without end.
    """
    if not 0.0 <= utilisation < 1.0:
        return None
    load = utilisation / (1.0 - utilisation)
    return load * (arrival_variation + service_variation) / 2 * service_s

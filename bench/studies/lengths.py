"""What tokenizing costs by length, 679 to 101,615 tokens, for every encoder at hand.

    python -m bench lengths [--tokenizers DIR] [--smoke | --full]

Medians of wall time on one thread, each text new to its encoder, ids handed out as the encoder
hands them out. Without --tokenizers the demo model's tokenizer alone.
"""

import time
from typing import Any

from bench.loads import workload
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.engines import FEWEST, Engines, loaded
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, milliseconds, times
from bench.tools.processes import say
from bench.tools.statistics import Cell, median

LENGTHS = (679, 2_000, 6_000, 16_000, 40_000, 101_615)
PUBLISHED_MS = {679: 1.18, 101_615: 220.0}
TEXT_CHARS = 4_000_000


def of_model(
    engines: Engines, lengths: tuple[int, ...], most: int, enough_ms: float
) -> dict[str, list[float]]:
    """Milliseconds by encoder, for each length: medians over texts that it has not seen, as many as
    take `enough_ms`, but FEWEST at least."""
    whole = workload.varied(TEXT_CHARS, 1)
    spent: dict[str, list[float]] = {name: [] for name in engines.encoders}
    for texts in engines.texts_of(whole, lengths, most).values():
        for name, encode in engines.encoders.items():
            taken: list[float] = []
            for text in texts:
                began_s = time.perf_counter()
                encode(text)
                taken.append((time.perf_counter() - began_s) * 1e3)
                if len(taken) >= FEWEST and sum(taken) > enough_ms:
                    break
            spent[name].append(median(taken) or 0.0)
    return spent


def run(options: Options) -> Finding:
    """All models, all encoders, all lengths."""
    facts = machine.facts()
    lengths = options.pick((679, 16_000), LENGTHS, LENGTHS)
    models, remarks = loaded(options.models())
    got: dict[str, dict[str, list[float]]] = {}
    for name, engines in models.items():
        say(f"  lengths, {name}")
        most, enough_ms = options.pick((3, 100.0), (20, 250.0), (100, 20_000.0))
        got[name] = of_model(engines, lengths, most, enough_ms)
    return finding(facts, lengths, got, remarks)


def finding(
    facts: dict[str, Any],
    lengths: tuple[int, ...],
    got: dict[str, dict[str, list[float]]],
    remarks: list[str],
) -> Finding:
    """The table, the curves, and whether time grows with length as published."""
    flat = {f"{model}, {name}": spent for model, by in got.items() for name, spent in by.items()}
    rows: list[list[Cell]] = [[name, *spent] for name, spent in flat.items()]
    reference = flat["demo, tokenizers encode"]
    grown = reference[-1] / reference[0]
    published_grown = PUBLISHED_MS[101_615] / PUBLISHED_MS[679]
    series = [
        Series(name, [(float(at), ms) for at, ms in zip(lengths, spent, strict=True)])
        for name, spent in flat.items()
    ]
    series.append(Series("published", [(float(at), ms) for at, ms in PUBLISHED_MS.items()]))
    return Finding(
        name="lengths",
        title="tokenizing by length",
        machine=facts,
        settings={"lengths": list(lengths)},
        tables=[Table("milliseconds", ["encoder", *(f"{at:,} tokens" for at in lengths)], rows)],
        plots=[
            Plot(title="tokenizing by length", x="tokens", y="ms", series=series, log="xy")
        ],
        published=[
            Beside(
                f"{lengths[0]:,} -> {lengths[-1]:,} tokens, {name}",
                milliseconds(*PUBLISHED_MS.values()),
                milliseconds(spent[0], spent[-1]),
            )
            for name, spent in flat.items()
        ],
        shapes=[
            Shape(
                f"time grows about as fast as length ({published_grown:.0f} x published for "
                f"{101_615 / 679:.0f} x the tokens)",
                0.5 * published_grown <= grown <= 2.0 * published_grown,
                f"tokenizers encode {times(reference[-1], reference[0])}",
            )
        ],
        remarks=remarks,
        numbers={f"{name} longest ms": spent[-1] for name, spent in flat.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "lengths")

"""Metrics before and after say what grew."""

from bench.tools.scrape import difference, parse


def test_counters_grow_by_label() -> None:
    family = "# TYPE x_seconds histogram\n"
    before = parse(family + 'x_seconds_count{model="a",rung="cache"} 5\n')
    after = parse(
        family + 'x_seconds_count{model="a",rung="cache"} 9\n'
        'x_seconds_count{model="b",rung="cache"} 1\nx_seconds_count{model="a",rung="short"} 2\n'
    )
    grown = difference(before, after, "x_seconds_count", "rung")
    assert grown == {"cache": 5.0, "short": 2.0}

"""The table of families: names, buckets, and the page generated from it."""

import re

import pytest

from scripts.families import markdown
from tests.paths import ROOT
from tokenlane.telemetry.metrics.families import BY_NAME, FAMILIES, TOKENIZE, TOKENIZE_QUEUE
from tokenlane.telemetry.metrics.family import Family

UNITS = ("_seconds", "_bytes", "_tokens", "_total", "_ratio", "_requests", "_info")
COUNTS = {
    "tokenlane_token_cache_entries",
    "tokenlane_config_last_reload_successful",
    "tokenlane_accept_queue_connections",
    "tokenlane_connections",
    "tokenlane_upstream_connections",
    "tokenlane_replica_left_out",
    "tokenlane_fleet_peers",
    "tokenlane_fleet_store_up",
    "tokenlane_replica_up",
    "tokenlane_replica_front_end_starved",
    "tokenlane_workers",
    "tokenlane_id_proof",
    "tokenlane_kv_blocks",
    "tokenlane_tokenizer_doubts",
    "process_open_fds",
    "process_max_fds",
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_family_is_well_formed(family: Family) -> None:
    assert re.fullmatch(r"(tokenlane|process)_[a-z_]+", family.name)
    assert family.help.endswith(".") or family.name.endswith("_info")
    assert family.name.endswith(UNITS) or family.name in COUNTS
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert bool(family.buckets) == (family.kind == "histogram")
    assert list(family.buckets) == sorted(set(family.buckets))
    assert all(re.fullmatch(r"[a-z_]+", label) for label in family.labels)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(FAMILIES)


def test_tokenize_histograms_have_the_promised_names_and_buckets() -> None:
    assert (TOKENIZE.name, TOKENIZE.labels) == ("tokenlane_tokenize_seconds", ("rung", "model"))
    assert TOKENIZE_QUEUE.name == "tokenlane_tokenize_queue_seconds"
    assert TOKENIZE_QUEUE.labels == ("rung",)
    for family in (TOKENIZE, TOKENIZE_QUEUE):
        assert {0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1} <= set(family.buckets)


def test_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == markdown(), (
        "run: python -m scripts.families > docs/metrics.md"
    )

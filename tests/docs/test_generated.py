"""Pages that are written by the code are what it would write now; the site has every page."""

import re
from pathlib import Path

from scripts import peers, site, why
from scripts.reference import markdown
from tests.deploy.rules import alerts
from tests.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_configuration_reference_is_up_to_date() -> None:
    page = ROOT / "docs" / "configuration.md"
    made = "run: python -m scripts.reference > docs/configuration.md"
    assert page.read_text(encoding="utf-8") == markdown(), made


def test_every_page_is_in_the_sites_margin(tmp_path: Path) -> None:
    site.gather(tmp_path)
    listed = [page for pages in site.PARTS.values() for page in pages.split()]
    assert sorted([*listed, "index"]) == sorted(page.stem for page in tmp_path.glob("*.md"))


def test_links_of_the_site_stay_in_it(tmp_path: Path) -> None:
    site.gather(tmp_path)
    for page in tmp_path.glob("*.md"):
        for _, _, target, _ in site.LINK.findall(page.read_text(encoding="utf-8")):
            assert re.match(r"https?:", target) or (tmp_path / target).is_file(), (
                page.name,
                target,
            )


def test_links_are_turned() -> None:
    pages = {"index.md", "a.md", "examples.md"}
    text = "[a](a.md#x) [r](../README.md) [config/](../config) [code](../proxy/x.py) [w](https://w)"
    assert site.turned(text, "docs", pages) == (
        "[a](a.md#x) [r](index.md) [config/](examples.md) code (`proxy/x.py`) [w](https://w)"
    )


def test_the_readme_tells_the_figures_of_its_plot() -> None:
    told = re.search(r"take ([\d.]+ ms) .* and ([\d.]+ s) .*docs/img/why.png", README)
    found = why.figures()
    shown = why.shown(found[why.GATEWAY][1]), why.shown(found[why.TWIN][1])
    assert told is not None
    assert told.groups() == shown


def test_the_readme_compares_places_to_tokenize_with_the_same_encoder() -> None:
    why_it_is = README.partition("## Why")[2].partition("docs/img/why.png")[0]
    assert "`tokenizers`" in why_it_is
    assert "`tokenizers`" in why.GATEWAY
    assert why.TWIN.endswith("the same")


def test_the_plot_beside_other_routers_has_the_dear_rows_too() -> None:
    found = peers.costs()
    assert any("all new" in row for row in found)
    assert sum("program text" in row for row in found) == 3
    assert all(set(bars) == set(peers.COLUMNS.values()) for bars in found.values())


def test_the_readme_tells_the_figures_of_the_plot_beside_others() -> None:
    told = re.search(r"!\[300 bytes, (.*): (\d+) µs .* (\d+) in SG.* (\d+) in v.*peers.png", README)
    assert told is not None
    bars = peers.costs()[f"300 B, {told[1]}"]
    shown = [f"{bars[name]:.0f}" for name in ("tokenlane", "sglang-router", "vllm-router")]
    assert list(told.groups()[1:]) == shown


def test_alerts_name_their_heading_in_the_runbook() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^## (.*)$", text, re.MULTILINE)
    }
    for name, alert in alerts().items():
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert (page, anchor in headings) == ("docs/runbook.md", True), name
        assert f"`{name}`" in text, name


def test_the_page_of_dashboards_lists_every_alert_and_every_file() -> None:
    text = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(Tokenlane\w+)` \| (\w+) \|", text, re.MULTILINE)
    told = [(name, alert["labels"]["severity"]) for name, alert in alerts().items()]
    assert sorted(listed) == sorted(told)
    named = set(re.findall(r"^\| `(deploy/[\w./-]+)` \|", text, re.MULTILINE))
    files = [*(ROOT / "deploy").glob("prometheus/*.yml"), *(ROOT / "deploy").glob("grafana/*.json")]
    assert named == {path.relative_to(ROOT).as_posix() for path in files}

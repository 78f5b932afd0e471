"""What the pages say is so: links lead somewhere, commands are understood, blocks can be read."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from scripts import site
from tests.paths import ROOT
from tokenlane.cli.main import parser

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A line of an indented block, with those that a backslash joins to it.
INDENTED = re.compile(r"^ {4}((?:.*\\\n)*.*)$", re.MULTILINE)


# A flag of the replicas that a page of migration names.
FROM_VLLM = "--kv-events-config"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """What a heading is linked by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[str]:
    """Our own commands in its indented blocks."""
    lines = INDENTED.findall(page.read_text(encoding="utf-8"))
    found = [line.replace("\\\n", " ").strip() for line in lines]
    return [line for line in found if re.match(r"(tokenlane|make|python -m) ", line)]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    missing = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_can_be_read(page: Path) -> None:
    for language, block in FENCED.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(block)
        elif language == "yaml":
            yaml.safe_load(block)
        else:
            assert language == "", language


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_are_understood(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if words[0] == "tokenlane":
            parser().parse_args(words[1:])
        elif words[0] == "make":
            assert words[1] in targets, command
        else:
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 800


def test_the_site_and_the_readme_have_the_same_groups() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Links")[2]
    for part, pages in site.PARTS.items():
        group = text.partition(f"**{part}**")[2].partition("\n\n")[0]
        linked = {Path(link).stem for link in LINK.findall(group)}
        assert set(pages.split()) - {"examples"} == linked - {"LICENSE"}, part


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("from-*.md")), ids=named)
def test_pages_of_migration_name_what_there_is(page: Path) -> None:
    """Of each row, the second column: our flags and settings."""
    reference = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL))
    rows = re.findall(
        r"^\| (.*?) \| (.*?) \| .*\|$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 20
    for _, ours in rows:
        for flag in re.findall(r"`(--[a-z-]+)", ours):
            assert f"`{flag}`" in reference or flag in ("--config", "--version", FROM_VLLM), flag
        for section, name in re.findall(r"`([a-z_]+)\.([a-z_]+)", ours):
            assert f"| `{name}` |" in sections[section], ours


def test_the_readme_says_how_to_begin() -> None:
    """The checks above look at something."""
    found = commands(ROOT / "README.md")
    assert {"make run", "make test"} <= {command.partition("#")[0].strip() for command in found}
    assert any(command.startswith("tokenlane serve --backend") for command in map(_plain, found))


def _plain(command: str) -> str:
    return " ".join(command.split())

"""The words of code and docs are plain: what nobody would say to a colleague is found here.

Invariants:
- The list is short, and each phrase on it has a plain one beside it.
- Functions say what they do in the imperative: "Return", not "Returns".
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from tests.paths import ROOT

PLAIN = {
    r"\banew\b": "again",
    r"\bin the place of\b": "instead of",
    r"\bwho leaves\b": "that disconnects",
    r"\bas (it|they) (came|comes?)\b(?! from)": "unchanged",
    r"\b(is|are) said\b": "name the log line, the answer or the metric",
    r"\bno foreseen reason\b": "unexpectedly",
    r"\bnobody foresaw\b": "unexpected",
    r"^Looks\.$": "say at what",
}
# A property may be a noun; a function that overrides another may say "As the other".
NO_VERB = re.compile(
    r"(A|About|An|By|For|From|How|Of|One|The|Those|What|Where|Whether|Who"
    r"|(Add|Begin|Build|Call|Close|Count|Drop|End|Forget|Give|Hold|Keep|Let|Load|Look|Make|Mark|Open"
    r"|Print|Put|Raise|Read|Replace|Return|Run|Send|Serve|Set|Show|Start|Stop|Take|Tell|Wait|Write)s)\b"
)
PACKAGE = ROOT / "proxy" / "tokenlane"
# Rooms and pages that are still to be gone through.
NOT_YET = (
    "admission/policy.py",
    "cli/doctor",
    "control",
    "replay",
    "routing",
    "telemetry/load_board.py",
    "telemetry/metrics/families.py",
)
PAGES_NOT_YET = {"architecture.md", "metrics.md", "routing.md"}
SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.relative_to(PACKAGE).as_posix().startswith(NOT_YET)
]
PAGES = [
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in PAGES_NOT_YET),
    *(ROOT / name for name in ("README.md", "THREAT_MODEL.md", "CHANGELOG.md")),
]


def texts(source: str) -> Iterator[str]:
    """Yield the strings and comments of a module, docstrings included, as one line each."""
    comment: list[str] = []
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("# "))
        elif token.type in (tokenize.NL, tokenize.NEWLINE):
            continue
        else:
            yield " ".join(comment)
            comment = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())


def named(text: str) -> list[str]:
    """Return what the list says of the phrases in a text."""
    return [
        f"{text[:80]!r}: rather {plain}" for odd, plain in PLAIN.items() if re.search(odd, text)
    ]


def test_the_list_finds_phrases() -> None:
    assert len(named("It is read anew, in the place of others.")) == 2
    assert named("It is read again, as they come from disk.") == []


def test_modules_are_written_plainly() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): odd
        for path in SOURCES
        if (odd := [one for text in texts(path.read_text(encoding="utf-8")) for one in named(text)])
    }
    assert found == {}


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of the functions of a module that are no properties."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            marks = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if not marks & {"property", "cached_property"}:
                yield node.name, ast.get_docstring(node) or ""


def test_functions_begin_with_their_verb() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {name}: {text[:60]}"
        for path in SOURCES
        for name, text in functions(path.read_text(encoding="utf-8"))
        if NO_VERB.match(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_are_written_plainly(page: Path) -> None:
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    assert [one for text in paragraphs for one in named(" ".join(text.split()))] == []

"""Published lists of HTTP/1 inputs beside the corpus: published.toml, read.

Invariants:
- Every case of a list, in the version named there, has at least one of ours that tries the same.
- No byte of theirs is here: the corpus is our own data.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conformance.corpus import Case, cases

_FILE = Path(__file__).with_suffix(".toml")
_ENTRY = re.compile(r"(?P<ids>\S+(?: \S+)*?)(?: \((?P<note>\w+)\))?")


@dataclass(frozen=True)
class Entry:
    """A published case. part, name: where it is in its list. ids: ours. note: a key of notes()."""

    part: str
    name: str
    ids: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class PublishedList:
    """project: as GitHub names it. file: in it, at this commit."""

    project: str
    file: str
    commit: str
    entries: tuple[Entry, ...]


def _entry(part: str, name: str, said: str) -> Entry:
    match = _ENTRY.fullmatch(said)
    assert match is not None, f"{part}, {name}: {said}"
    return Entry(part, name, tuple(match["ids"].split()), match["note"] or "")


@cache
def lists() -> dict[str, PublishedList]:
    """All of them, by a short name."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for key, one in table.items():
        if key != "notes":
            parts = {part: rows for part, rows in one.items() if isinstance(rows, dict)}
            entries = [_entry(part, *row) for part, rows in parts.items() for row in rows.items()]
            found[key] = PublishedList(one["project"], one["file"], one["commit"], tuple(entries))
    return found


def notes() -> dict[str, str]:
    """What the words in brackets say."""
    table: dict[str, str] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["notes"]
    return table


@cache
def replayed() -> frozenset[str]:
    """The ids of the cases that stand for a published one."""
    return frozenset(id_ for one in lists().values() for entry in one.entries for id_ in entry.ids)


def refuses(case: Case) -> bool:
    """Whether its last request is refused: a deadline's 408 is a refusal too."""
    return case.statuses[-1] != 200


def table() -> list[str]:
    """The lists for docs/conformance.md: how many cases, and what becomes of them."""
    ours = {case.id: case for case in cases()}
    rows = [
        "| list | file | commit | cases | refused | canonical | of ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in lists().values():
        outcomes = [all(refuses(ours[id_]) for id_ in entry.ids) for entry in one.entries]
        used = {id_ for entry in one.entries for id_ in entry.ids}
        rows.append(
            f"| {one.project} | `{one.file}` | `{one.commit[:10]}` | {len(outcomes)} "
            f"| {sum(outcomes)} | {len(outcomes) - sum(outcomes)} | {len(used)} |"
        )
    return rows

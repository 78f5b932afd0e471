"""The folders of bench/ know only those below them, and say what they are for."""

import grimp
import pytest

from tests.paths import ROOT

# From top to bottom.
FOLDERS = ("engine", "studies", "experiments", "loads", "tools")


def imports() -> dict[str, set[str]]:
    """Return what each module of bench/ imports from it."""
    graph = grimp.build_graph("bench", cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_a_folder_imports_only_from_those_below_it() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if (own := name.split(".")[1:2]) and own[0] in FOLDERS
        if other.partition(".")[2].partition(".")[0] not in FOLDERS[FOLDERS.index(own[0]) :]
    ]
    assert wrong == []


def test_nothing_imports_itself_by_way_of_others() -> None:
    left = imports()
    assert len(left) > 60
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert sorted(left) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_what_it_is_for(folder: str) -> None:
    text = (ROOT / "bench" / folder / "__init__.py").read_text(encoding="utf-8")
    assert 3 <= len(text.splitlines()) <= 5
    assert not (ROOT / "bench" / folder / f"{folder}.py").exists()

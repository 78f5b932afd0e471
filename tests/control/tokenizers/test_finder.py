"""Where a model's tokenizer is looked for, in real folders laid out as the hub lays them out."""

import os
from pathlib import Path

import pytest

from tokenlane.control.tokenizers.finder import find, hub_cache, snapshots


def folder(at: Path) -> Path:
    at.mkdir(parents=True)
    (at / "tokenizer.json").write_text("{}")
    return at


def hub(tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "hub")}


def snapshot(tmp_path: Path, revision: str, *, main: bool = False, name: str = "org--m") -> Path:
    base = tmp_path / "hub" / f"models--{name}"
    if main:
        (base / "refs").mkdir(parents=True, exist_ok=True)
        (base / "refs" / "main").write_text(revision)
    return folder(base / "snapshots" / revision)


def test_the_models_root_on_disk(tmp_path: Path) -> None:
    at = folder(tmp_path / "models" / "m")
    found = find("m", str(at), hub(tmp_path))
    assert found.folder == str(at)
    assert found.how == "the model's folder, as its replica names it"


def test_a_root_that_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)  # the weights are here, the tokenizer is not
    found = find("m", str(tmp_path / "models" / "m"), hub(tmp_path))
    assert found.folder is None
    assert "no tokenizer.json here in" in found.how
    assert "where its replica has it" in found.how


@pytest.mark.parametrize(("model", "root"), [("org/m", None), ("served-name", "org/m")])
def test_the_hubs_cache(tmp_path: Path, model: str, root: str | None) -> None:
    other = snapshot(tmp_path, "beef")
    at = snapshot(tmp_path, "cafe", main=True)
    os.utime(other, (2e9, 2e9))  # newer, but main is main
    found = find(model, root, hub(tmp_path))
    assert (found.folder, found.how) == (str(at), "the local hub cache")


def test_without_main_the_newest(tmp_path: Path) -> None:
    newest, oldest = snapshot(tmp_path, "aaa1"), snapshot(tmp_path, "bbb2")
    os.utime(oldest, (1e9, 1e9))
    assert find("org/m", None, hub(tmp_path)).folder == str(newest)
    (newest / "tokenizer.json").unlink()
    assert find("org/m", None, hub(tmp_path)).folder == str(oldest)


@pytest.mark.parametrize("name", ["../../etc", "org/../m", "/etc", "a/b/c", "org/m\n", "~/m", ""])
def test_names_that_are_no_repositories(tmp_path: Path, name: str) -> None:
    snapshot(tmp_path, "cafe", main=True)
    found = find(name, name, hub(tmp_path))
    assert found.folder is None
    assert found.how


def test_a_revision_that_is_a_path(tmp_path: Path) -> None:
    folder(tmp_path / "secret")
    base = tmp_path / "hub" / "models--org--m"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("../../../secret")
    assert list(snapshots(tmp_path / "hub", "org/m")) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert str(hub_cache(environ)) == expected


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # nor is there an account
    assert find("org/m", None, {}).how == "org/m is not in ~/.cache/huggingface/hub"
    assert str(hub_cache({"HF_HUB_CACHE": "~/hub"})) == "~/hub"

"""Given folders whose vocabulary only replicas read: they are asked, or the start says so."""

from pathlib import Path

import msgspec
import pytest

from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.control.checks import check_settings
from tokenlane.control.tokenizers.resolution import discover, with_folders
from tokenlane.errors import ConfigError

SETTINGS = Settings(backends=("http://127.0.0.1:9",))


def _given(folder: Path, *, ask_replicas: bool) -> Settings:
    tokens = TokenSettings(folders={"m": str(folder)}, ask_replicas=ask_replicas)
    return msgspec.structs.replace(SETTINGS, tokens=tokens)


@pytest.mark.parametrize("name", ["tiktoken.model", "tekken.json", "tokenizer.model"])
async def test_its_replicas_are_asked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    settings = _given(tmp_path, ask_replicas=True)
    check_settings(settings)
    sources = await discover(settings, ["m"], {})
    assert sources["m"].folder is None
    assert sources["m"].how == f"{tmp_path} has {name} and no tokenizer.json"
    assert with_folders(settings, sources).tokens.folders == {}


def test_the_start_says_so_where_they_are_not_asked(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(ConfigError) as refused:
        check_settings(_given(tmp_path, ask_replicas=False))
    assert str(refused.value) == (
        f"tokens.folders.m: {tmp_path} has tiktoken.model and no tokenizer.json, so only its"
        " replicas make ids; tokens.ask_replicas asks them"
    )

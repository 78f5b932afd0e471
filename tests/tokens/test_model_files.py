"""What the names of a folder's files say."""

from pathlib import Path

import pytest

from tokenlane.tokens.model_files import mistral_layout, repositories, vocabulary_elsewhere

PIECES, TEKKEN, WEIGHTS = "tokenizer.model.v3", "tekken.json", "model-00001-of-2.safetensors"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer.json"}, False),
        ({"consolidated.safetensors", PIECES}, True),
        ({"consolidated-00001-of-2.safetensors", TEKKEN, WEIGHTS}, True),
        ({"consolidated.safetensors", "tokenizer.model"}, False),
        # Converted weights alone: transformers reads it, whatever lies beside them.
        ({WEIGHTS, TEKKEN, PIECES, "params.json"}, False),
        # A copy without weights does not tell which the replica has.
        ({TEKKEN}, True),
        ({PIECES}, None),
        ({"params.json", "tokenizer.json"}, None),
    ],
)
def test_mistrals_layout(files: set[str], expected: bool | None) -> None:
    assert mistral_layout(files) is expected


def test_a_vocabulary_that_only_replicas_read(tmp_path: Path) -> None:
    assert vocabulary_elsewhere(tmp_path) is None
    (tmp_path / "tiktoken.model").touch()
    assert vocabulary_elsewhere(tmp_path) == "tiktoken.model"
    (tmp_path / "tokenizer.json").touch()
    assert vocabulary_elsewhere(tmp_path) is None


def test_names_that_a_folder_may_have_on_the_hub() -> None:
    assert list(repositories(Path("/models/org/name"))) == ["org/name"]
    snapshot = Path("/hub/models--org--name/snapshots/cafe")
    assert list(repositories(snapshot)) == ["snapshots/cafe", "org/name"]
    assert list(repositories(Path("name"))) == ["/name"]

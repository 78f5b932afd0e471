"""A ChatML template, for models whose folder has no chat template of its own."""

import json
from pathlib import Path

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(folder: Path, into: Path) -> Path:
    """Return the model's folder, where it has a chat template; else make the folder `into` of it
    and ChatML, and return that."""
    config = folder / "tokenizer_config.json"
    if (folder / "chat_template.jinja").is_file() or (
        config.is_file() and json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    ):
        return folder
    into.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            (into / name).symlink_to((folder / name).resolve())
    (into / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return into

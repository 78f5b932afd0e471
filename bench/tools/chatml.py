"""A ChatML template, for models whose folder has no chat template of its own."""

from pathlib import Path

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml(folder: Path, into: Path) -> Path:
    """Make the folder `into`: the model's tokenizer with this template. Return it."""
    into.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            (into / name).symlink_to((folder / name).resolve())
    (into / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return into

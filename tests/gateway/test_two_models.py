"""Two models with two tokenizers behind one gateway: nothing of one reaches the other."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.control.test_supervisor import Gateway, until
from tests.gateway.test_kv_events import metric
from tokenlane.protocols.bodies import ChatFields
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} says {{ message.content }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>answer {% endif %}"
)


def other_model(folder: Path) -> Path:
    """The demo's vocabulary with another template, so that every prompt differs."""
    folder.mkdir()
    demo = demo_folder()
    (folder / "tokenizer.json").write_bytes((demo / "tokenizer.json").read_bytes())
    config = json.loads((demo / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


def counts(tokenizer: Tokenizer, body: dict[str, Any]) -> int:
    """Prompt tokens of a chat by this tokenizer."""
    return len(tokenizer.chat_ids(msgspec.json.decode(json.dumps(body), type=ChatFields))) // 4


def test_no_cross_talk(tmp_path: Path) -> None:
    folder = other_model(tmp_path / "other")
    folders = {"demo": demo_folder(), "other": folder}
    tokenizers = {model: Tokenizer.load(model, path, fast=False) for model, path in folders.items()}
    events = ("--kv-events", "maps")
    with (
        FleetProcess(2, free_ports(2), events) as demo,
        FleetProcess(2, free_ports(2), (*events, "--tokenizer", f"other={folder}")) as other,
    ):
        urls = {"demo": demo.urls, "other": other.urls}
        argv = [word for both in urls.values() for url in both for word in ("--backend", url)]
        argv += [word for it in folders.items() for word in ("--tokenizer", "=".join(map(str, it)))]
        with Gateway("serve", *argv) as gateway:
            complete = ("tokenlane_kv_event_standing_info", 'standing="complete"')
            until(lambda: metric(gateway, *complete) == 4)
            for text in ("a long question about many things " * 20, "another " * 100):
                for round_number in range(3):
                    for model in folders:
                        messages = [{"role": "user", "content": text}]
                        body = {"model": model, "messages": messages, "max_tokens": 1}
                        connection = gateway.send("/v1/chat/completions", body)
                        answer = connection.getresponse()
                        told = json.loads(answer.read())
                        connection.close()
                        replica = f"http://{answer.headers['x-tokenlane-replica']}"
                        predicted = int(answer.headers["x-tokenlane-cached-tokens"])
                        assert replica in urls[model]
                        assert told["model"] == model
                        assert told["usage"]["prompt_tokens"] == counts(tokenizers[model], body)
                        cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
                        # The same text was sent to the other model just before.
                        assert (predicted, cached > 0) == (cached, round_number > 0)
            assert metric(gateway, "tokenlane_prompt_token_mismatches_total") == 0
            assert gateway.stop() == 0

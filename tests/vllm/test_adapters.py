"""A LoRA adapter on real vLLM: its chats go as ids by its model's proof, and are answered as by
text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import Report
from tests.vllm.processes import Server, healthy, vllm_server, write_adapter
from tests.vllm.test_forwarding import CHAT, Body, said
from tests.vllm.test_gateway import ask, wait_for
from tests.vllm.test_kv_events import Gateway
from tokenlane.fleet_state import IdKind

ADAPTER = "tiny-lora"
COUNT = 40


@pytest.fixture(scope="module")
def server(
    vllm_python: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"))
    flags = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={adapter}")
    with healthy(vllm_server("vllm-lora", vllm_python, model_folder, *flags)) as server:
        yield server


def test_an_adapter_is_answered_by_ids_as_by_text(
    server: Server, model_folder: Path, report: Report
) -> None:
    front = Gateway(
        "gateway-lora", {"tiny": model_folder}, server, TOKENLANE_TOKENS_AS_TEXT_RATIO="0"
    )
    try:
        front.wait()
        wait_for(lambda: front.sample("tokenlane_id_proof", server) == len(IdKind), 120.0)
        other = 0
        for number in range(COUNT):
            messages = [{"role": "user", "content": f"Say {number} things, please."}]
            body: Body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            body |= {"chat_template_kwargs": {"enable_thinking": False}}
            told = {}
            for model in ("tiny", ADAPTER):
                asked = body | {"model": model}
                _, _, by_text = ask(server, CHAT, asked | {"cache_salt": "text"})
                status, headers, by_ids = ask(front, CHAT, asked | {"cache_salt": "ids"})
                assert (status, headers["x-tokenlane-forwarded"]) == (200, "ids")
                told[model] = said(by_ids)
                assert told[model] == said(by_text)
            other += told["tiny"]["choices"] != told[ADAPTER]["choices"]
        assert other > COUNT / 4
    finally:
        front.stop()
    report.add("LoRA: chats of an adapter and of its model answered by ids as by text", 2 * COUNT)

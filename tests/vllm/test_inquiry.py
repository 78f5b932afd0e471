"""A gateway that has no tokenizer asks real vLLM for ids: they are those that vLLM works with."""

import json
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.vllm import prompts
from tests.vllm.conftest import Report
from tests.vllm.processes import Server
from tests.vllm.test_gateway import ask
from tests.vllm.versions import read_alike
from tokenlane.runtime.ports import free_ports


@pytest.fixture(scope="module")
def asking(replicas: tuple[Server, Server]) -> Iterator[tuple[Server, int]]:
    """A gateway without a tokenizer, and its admin port."""
    port, admin_port = free_ports(1), free_ports(1)
    command = [sys.executable, "-m", "tokenlane", "serve", "--port", str(port)]
    command += ["--admin-port", str(admin_port), "--tokens-discover", "false"]
    command += ["--tokens-ask-deadline-s", "60"]
    for replica in replicas:
        command += ["--backend", replica.url]
    server = Server("asking", command, port)
    try:
        server.wait()
        yield server, admin_port
    finally:
        server.stop()


def test_the_ids_that_replicas_say_are_those_they_compute(
    asking: tuple[Server, int], report: Report
) -> None:
    server, admin_port = asking
    sent = 0
    for path, bodies in (
        ("/v1/chat/completions", read_alike(prompts.chats())),
        ("/v1/completions", prompts.completions()),
    ):
        for body in bodies:
            status, _, answer = ask(server, path, body | {"max_tokens": 1})
            assert status == 200, (body, answer)
            sent += 1
    hi = {"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief.", "max_tokens": 1}
    assert ask(server, "/v1/messages", hi)[0] == 200
    assert ask(server, "/v1/responses", {"input": "Hi", "max_output_tokens": 1})[0] == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics") as answered:
        page = answered.read().decode()
    counted = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line and not line.startswith("#")
    }
    asked = counted['tokenlane_tokenize_seconds_count{model="tiny",rung="replica"}']
    wrong = sum(
        value
        for name, value in counted.items()
        if name.startswith("tokenlane_prompt_token_mismatches_total")
    )
    report.add("prompts whose ids a replica was asked for", f"{asked:.0f} of {sent + 2}")
    report.add("of these, usage that differs", f"{wrong:.0f}")
    assert wrong == 0
    assert asked > 0.8 * sent, json.dumps(
        {name: value for name, value in counted.items() if "bails" in name}, indent=1
    )

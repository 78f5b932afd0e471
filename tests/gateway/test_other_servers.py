"""Replicas that are not vLLM: what each thing that they lack costs, as docs/other-servers.md says.

A whole gateway in front of a simulated fleet that lacks it.
"""

import json
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow

CONTEXT_TOKENS = 400
OPENING = "Tell me of the sea and of what lives in it, in many words. " * 8
TOO_LONG = OPENING * 8
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOKENIZE, DETOKENIZE, METRICS, VERSION = "/tokenize", "/detokenize", "/metrics", "/version"
MODELS, USAGE, CONTEXT = "/v1/models", "usage", "max_model_len"
LACKS = (TOKENIZE, DETOKENIZE, METRICS, VERSION, MODELS, USAGE, CONTEXT)
EVERYTHING = ",".join(LACKS)


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def where(self) -> tuple[str, str]:
        """The replica, and why it was chosen."""
        route = self.headers["x-tokenlane-route"].removeprefix("affinity ")
        return self.headers["x-tokenlane-replica"], route


def ask(gateway: Gateway, path: str, text: str, *, stream: bool = False) -> Told:
    messages = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"messages": messages} if path == CHAT else {"prompt": text}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    connection = gateway.send(path, {"model": "demo", "max_tokens": 4, **body})
    with connection.getresponse() as response:
        told = Told(response.status, dict(response.headers), response.read())
    connection.close()
    return told


def usage(told: Told, *, stream: bool) -> Any:
    """Of an answer that is whole."""
    assert told.status == 200
    if not stream:
        answer = json.loads(told.body)
        assert answer["choices"][0]["finish_reason"] == "length"
        return answer["usage"]
    *events, done = told.body.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    reasons = [one["finish_reason"] for chunk in chunks for one in chunk["choices"]]
    assert reasons[-1] == "length"
    return chunks[-1].get("usage")


def series(gateway: Gateway) -> defaultdict[str, float]:
    """Metrics, summed over their labels."""
    sums: defaultdict[str, float] = defaultdict(float)
    for line in gateway.ask("/metrics", admin=True)[1].decode().splitlines():
        name, _, value = line.rpartition(" ")
        if not name.startswith("#"):
            sums[name.partition("{")[0]] += float(value)
    return sums


@pytest.mark.parametrize("lacks", ["", *LACKS, EVERYTHING])
def test_what_a_server_lacks(lacks: str) -> None:
    flags = ("--max-model-tokens", str(CONTEXT_TOKENS), "--lacks", lacks)
    with FleetProcess(2, free_ports(2), flags) as fleet:
        backends = [word for url in fleet.urls for word in ("--backend", url)]
        argv = ("serve", *backends, "--tokenizer", f"demo={demo_folder()}")
        with Gateway(*argv) as gateway:
            proves = {TOKENIZE, DETOKENIZE, MODELS}.isdisjoint(lacks.split(","))

            def settled() -> bool:
                rows = gateway.status()["replicas"]
                assert all(row["up"] for row in rows)
                assert all(row["models"] == ["demo"] for row in rows) == (MODELS not in lacks)
                standings = {one for row in rows for one in row["ids"].get("demo", {}).values()}
                if proves:
                    return standings == {"proven"}
                # Ids are forwarded, and prompts refused for their length, where they are proven.
                assert standings <= {"unproven"}
                return all(row["ids_why"] for row in rows) or MODELS in lacks

            until(settled)

            for path in (CHAT, COMPLETION):
                for stream in (False, True):
                    opening = f"{path} {stream} {OPENING}"
                    first = ask(gateway, path, opening, stream=stream)
                    assert (usage(first, stream=stream) is None) == (USAGE in lacks)
                    second = ask(gateway, path, opening + "And then?", stream=stream)
                    assert usage(second, stream=stream) or USAGE in lacks
                    # Our own index knows where the opening went.
                    assert first.where[1] == "cold"
                    assert second.where == (first.where[0], "prefix")
                    assert int(second.headers["x-tokenlane-cached-tokens"]) >= 64

            # A prompt without room is refused by the gateway if it knows, else by the replica.
            refused = ask(gateway, COMPLETION, TOO_LONG)
            assert refused.status == 400
            knows = proves and CONTEXT not in lacks
            assert ("x-tokenlane-replica" in refused.headers) == (not knows)

            told = series(gateway)
            assert ("tokenlane_replica_running_requests" in told) == (METRICS not in lacks)
            assert (told["tokenlane_actual_cached_tokens_total"] > 0) == (USAGE not in lacks)
            # Of streams without usage the tokens are counted, of whole answers they are unknown.
            answers = 4 if USAGE in lacks else 8
            assert told["tokenlane_output_tokens_total"] == 4 * answers
            assert gateway.stop() == 0


@pytest.mark.parametrize("lacks", ["", EVERYTHING])
def test_a_model_without_a_tokenizer_here(lacks: str) -> None:
    """Its replicas make the ids; where they do not, prompts are compared by their text."""
    with FleetProcess(2, free_ports(2), ("--lacks", lacks)) as fleet:
        backends = [word for url in fleet.urls for word in ("--backend", url)]
        with Gateway("serve", *backends, "--tokens-discover", "false") as gateway:
            for path in (CHAT, COMPLETION):
                first, second = (ask(gateway, path, OPENING + more) for more in ("", "And then?"))
                assert usage(first, stream=False) or USAGE in lacks
                assert second.where[0] == first.where[0]
                expected = {"bail", "no-tokenizer"} if TOKENIZE in lacks else {"prefix"}
                assert second.where[1] in expected
                assert ("x-tokenlane-cached-tokens" in second.headers) == (TOKENIZE not in lacks)
            assert gateway.stop() == 0

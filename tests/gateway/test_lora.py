"""LoRA adapters: routed to where they are loaded, with their model's tokenizer, never mixed up."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.raw import CHAT, Answer, get, post
from tests.simulator.client import ask as ask_replica
from tests.support import PROVEN, Bench, demo_tokenizer, gateway
from tokenlane.config.settings import ControlSettings
from tokenlane.control.fleet_table import Track, observe
from tokenlane.control.probes import open_session, probe
from tokenlane.fleet_state import FleetState, ReplicaState, adapter_bases
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.telemetry.metrics import families

TEXT = "a question about tables " * 40


async def observed(fleet: SimulatedFleet) -> FleetState:
    """What the control plane learns of these replicas."""
    settings = ControlSettings()
    found = []
    async with open_session(settings) as session:
        for slot, replica in enumerate(fleet.replicas):
            name = replica.url.partition("://")[2]
            track = Track(ReplicaState(id=name, slot=slot, url=replica.url))
            state = observe(track, await probe(session, replica.url), settings).state
            found.append(msgspec.structs.replace(state, proofs={"demo": PROVEN}))
    return FleetState(1, tuple(found))


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[SimulatedFleet, Bench]]:
    """Three replicas; `sql` is loaded on the second, `law` on the last two."""
    async with SimulatedFleet(SimulatorSettings(**settings), tokenizer=demo_tokenizer()) as fleet:
        await fleet.start(3)
        for slot, name in ((1, "sql"), (1, "law"), (2, "law")):
            order = {"lora_name": name, "lora_path": f"/adapters/{name}"}
            url = fleet.replicas[slot].url
            assert (await ask_replica(url, "/v1/load_lora_adapter", order)).status == 200
        async with gateway(state=await observed(fleet), tokenizer=demo_tokenizer()) as bench:
            yield fleet, bench


async def chat(bench: Bench, model: str | None, text: str = TEXT) -> Answer:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    if model is not None:
        body["model"] = model
    head = "content-type: application/json\r\n"
    return await bench.ask(post(CHAT, json.dumps(body).encode(), head))


async def test_adapters_go_where_they_are_loaded_and_share_nothing() -> None:
    async with serving() as (fleet, bench):
        places = {replica.url.partition("://")[2]: at for at, replica in enumerate(fleet.replicas)}
        loaded = {"demo": {0, 1, 2}, "sql": {1}, "law": {1, 2}}
        for turn in range(3):
            for model, where in loaded.items():
                answer = await chat(bench, model)
                told = json.loads(answer.body)
                assert (answer.status, told["model"]) == (200, model)
                assert places[answer.headers["x-tokenlane-replica"]] in where
                cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
                # The same text went to the other two just before.
                assert (cached > 0) == (turn > 0)
                assert int(answer.headers["x-tokenlane-cached-tokens"]) == cached
        assert bench.metric(families.PROMPT_TOKENS, "sql") > 0
        for model in loaded:
            assert bench.metric(families.BAILS, "no-tokenizer") == 0
            assert not bench.gateway.prover.trust.claim(model, 3).refuted


async def test_one_tokenizer_and_one_pool_of_caches_for_all_of_a_model() -> None:
    async with serving() as (_, bench):
        assert list(bench.tokens.models) == ["demo"]
        answer = await bench.ask(
            post("/tokenize", json.dumps({"model": "law", "prompt": "x y"}).encode())
        )
        ids = demo_tokenizer().encode("x y", add_special_tokens=True)
        assert json.loads(answer.body)["count"] == len(ids) // 4
        # Whoever names no model means the only one that is none's adapter.
        assert json.loads((await chat(bench, None)).body)["model"] == "demo"
        listed = json.loads((await bench.ask(get("/v1/models"), "GET")).body)["data"]
        parents = {card["id"]: card["parent"] for card in listed}
        assert parents == {"demo": None, "sql": "demo", "law": "demo"}


async def test_an_adapter_that_is_unloaded_is_gone_and_another_comes() -> None:
    async with serving() as (fleet, bench):
        assert (await chat(bench, "new")).status == 404
        url = fleet.replicas[1].url
        assert (
            await ask_replica(url, "/v1/unload_lora_adapter", {"lora_name": "sql"})
        ).status == 200
        order = {"lora_name": "new", "lora_path": "/adapters/new"}
        assert (
            await ask_replica(fleet.replicas[0].url, "/v1/load_lora_adapter", order)
        ).status == 200
        bench.gateway.update(await observed(fleet))
        assert (await chat(bench, "sql")).status == 404
        answer = await chat(bench, "new")
        assert answer.headers["x-tokenlane-replica"] == fleet.replicas[0].url.partition("://")[2]


@pytest.mark.parametrize(
    ("path", "order", "status", "why"),
    [
        ("load", {"lora_name": "sql"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ("load", {"lora_name": "demo", "lora_path": "/x"}, 400, "already been loaded"),
        ("unload", {"lora_name": "sql"}, 404, "cannot be found"),
        ("unload", {}, 400, "'lora_name' must be provided."),
    ],
)
async def test_a_replica_refuses_what_makes_no_sense(
    path: str, order: dict[str, str], status: int, why: str
) -> None:
    async with SimulatedFleet(tokenizer=demo_tokenizer()) as fleet:
        (url,) = await fleet.start(1)
        answer = await ask_replica(url, f"/v1/{path}_lora_adapter", order)
        assert answer.status == status
        assert why in answer.json["error"]["message"]


async def test_a_replica_answers_to_adapters_that_are_loaded_alone() -> None:
    async with SimulatedFleet(
        SimulatorSettings(adapters="a, b"), tokenizer=demo_tokenizer()
    ) as fleet:
        (first,) = await fleet.start(1)
        body = {"model": "b", "prompt": "hello", "max_tokens": 1}
        assert (await ask_replica(first, "/v1/completions", body)).json["model"] == "b"
        fleet.replicas[0].adapters.clear()
        assert (await ask_replica(first, "/v1/completions", body)).status == 404


def test_an_adapter_of_two_models_is_none() -> None:
    def replica(slot: int, **adapters: str) -> ReplicaState:
        return ReplicaState(id=str(slot), slot=slot, url="", adapters=adapters)

    found = adapter_bases([replica(0, a="m", b="m"), replica(1, a="other"), replica(2, b="m")])
    assert found == {"b": "m"}

"""What `explain` says is what is done: the same request, explained and sent, over tenants and
salts, rules, names and weights, adapters, kept responses, and replicas in every state."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.admission.test_auth import ALICE, AUTH, BOB, bearer
from tests.examples import many
from tests.gateway.test_explain import explainer
from tests.raw import Answer, Upstream, answering, json_bytes, ok, post
from tests.support import PROVEN, Bench, demo_tokenizer, gateway
from tokenlane.channel.messages import Explain
from tokenlane.config.settings import (
    HealthSettings,
    ModelSettings,
    RequestSettings,
    RoutingSettings,
    Settings,
)
from tokenlane.errors import RequestError
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.routing.candidates import LEFT_OUT_WORDS, LeftOut
from tokenlane.telemetry.stalls.stages import LOOP, OTHER

KEYS = {"alice": ALICE, "bob": BOB}
SLOTS = 5
FULL_COUNT = 3
SETTINGS = Settings(
    auth=AUTH,
    models=ModelSettings(
        aliases={"usual": "demo", "both": "mixed"}, splits={"mixed": {"demo": 2.0, "x": 1.0}}
    ),
    requests=RequestSettings(
        stripped_fields=("priority",), refused_fields=("echo",), output_limit_tokens=9
    ),
    routing=RoutingSettings(replica_limit_count=FULL_COUNT, refused_out_s=60.0),
    health=HealthSettings(
        failure_limit_count=1, ejection_s=60.0, ejection_limit_ratio=1.0, slow_start_s=0.0
    ),
)
STORY = "Once upon a time there was a gateway that never stalled. " * 12
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
MODELS = ("demo", "usual", "mixed", "both", "sql", "x")
TROUBLES = (
    None,
    None,
    LeftOut.DOWN,
    LeftOut.DRAINING,
    LeftOut.REFUSED,
    LeftOut.EJECTED,
    LeftOut.FULL,
)

# What the gateway finds out by itself, and the page is told by its workers.
SEEN_HERE = (LeftOut.REFUSED, LeftOut.EJECTED, LeftOut.FULL)


@dataclass(frozen=True)
class Scene:
    """models, troubles: of each replica, by slot. warm: of which tenants' prompts it is known that
    a replica holds them; kept: where and whose a response is."""

    models: tuple[tuple[str, ...], ...]
    troubles: tuple[LeftOut | None, ...]
    warm: tuple[tuple[str, int], ...]
    kept: tuple[int, str]


@dataclass(frozen=True)
class Asked:
    path: str
    tenant: str
    fields: dict[str, Any]
    session: str

    @property
    def body(self) -> bytes:
        if self.path == "/v1/completions":
            said: dict[str, Any] = {"prompt": STORY}
        elif self.path == "/v1/responses":
            said = {"input": [{"role": "user", "content": STORY}]}
        else:
            said = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 50}
        return json_bytes({**said, **self.fields})


scenes = st.builds(
    Scene,
    models=st.lists(
        st.sampled_from([("demo",), ("demo", "sql"), ("x",)]), min_size=SLOTS, max_size=SLOTS
    ).map(tuple),
    troubles=st.lists(st.sampled_from(TROUBLES), min_size=SLOTS, max_size=SLOTS).map(tuple),
    warm=st.lists(
        st.tuples(st.sampled_from(sorted(KEYS)), st.integers(0, SLOTS - 1)), min_size=1, max_size=3
    ).map(tuple),
    kept=st.tuples(st.integers(0, SLOTS - 1), st.sampled_from(sorted(KEYS))),
)
requests = st.builds(
    Asked,
    path=st.sampled_from(PATHS),
    tenant=st.sampled_from(sorted(KEYS)),
    fields=st.fixed_dictionaries(
        {"model": st.sampled_from([*MODELS, "demo", "sql", None, "none"])},
        optional={
            "cache_salt": st.sampled_from(["s", None]),
            "priority": st.just(1),
            "previous_response_id": st.sampled_from(["resp_1", "resp_2"]),
        },
    ).flatmap(lambda fields: st.sampled_from([fields] * 9 + [{**fields, "echo": False}])),
    session=st.sampled_from(["", "one", "two"]),
)


def state_of(scene: Scene) -> FleetState:
    return FleetState(
        1,
        tuple(
            ReplicaState(
                id=f"r{slot}",
                slot=slot,
                url=f"http://127.0.0.1:{9 + slot}",
                up=scene.troubles[slot] is not LeftOut.DOWN,
                draining=scene.troubles[slot] is LeftOut.DRAINING,
                models=models,
                adapters={"sql": "demo"} if "sql" in models else {},
                block_tokens=16,
                proofs=dict.fromkeys(models, PROVEN),
            )
            for slot, models in enumerate(scene.models)
        ),
    )


def left_alone(scene: Scene, model: str | None, loads: dict[int, int]) -> dict[str, str]:
    """What is to be said of the replicas that cannot be chosen, from the facts of the scene."""
    told: dict[str, LeftOut] = {}
    base = "demo" if model == "sql" and ("demo", "sql") in scene.models else None
    for slot, models in enumerate(scene.models):
        trouble = scene.troubles[slot]
        if model is not None and model not in models:
            told[f"r{slot}"] = LeftOut.NO_ADAPTER if base in models else LeftOut.OTHER_MODEL
        elif trouble in (LeftOut.DOWN, LeftOut.DRAINING):
            told[f"r{slot}"] = trouble
    doubted = {
        f"r{slot}": why
        for slot, why in enumerate(scene.troubles)
        if why in (LeftOut.REFUSED, LeftOut.EJECTED) and f"r{slot}" not in told
    }
    if len(told) + len(doubted) < SLOTS:  # else all are asked again
        told |= doubted
    for slot, count in loads.items():
        if count >= FULL_COUNT:
            told.setdefault(f"r{slot}", LeftOut.FULL)
    return {name: why.value for name, why in told.items()}


async def prepare(bench: Bench, scene: Scene) -> dict[int, int]:
    """Bring the gateway into the scene; return the requests in flight, by slot."""
    router, now_s = bench.gateway.router, time.monotonic()
    loads = dict.fromkeys(range(SLOTS), 0)
    for tenant, slot in scene.warm:
        if "demo" not in scene.models[slot]:
            continue
        # A prompt that was sent there is known by what was planned for it.
        told = explainer(bench)
        for path in PATHS:
            asked = Asked(path, tenant, {"model": "demo"}, "")
            plan = await told.plan(Explain((), asked.body, path, tenant))
            router.learn(slot, plan.query.blocks, now_s, tenant)
    for slot, trouble in enumerate(scene.troubles):
        if trouble is LeftOut.REFUSED:
            router.unreachable(slot, now_s, refused=False)
        elif trouble is LeftOut.EJECTED:
            router.health.failed(slot, now_s)
        elif trouble is LeftOut.FULL:
            bench.board.add(slot, FULL_COUNT, 0)
            loads[slot] = FULL_COUNT
    passive = {slot: why for slot, why in enumerate(scene.troubles) if why in SEEN_HERE}
    assert router.left_out(now_s) == passive
    slot, tenant = scene.kept
    bench.gateway.kept.made(slot, tenant, "resp_1")
    return loads


@pytest.mark.slow
@settings(max_examples=many(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(scene=scenes, asked=requests)
async def test_explained_is_done(scene: Scene, asked: Asked) -> None:
    headers = bearer(KEYS[asked.tenant])
    # The id decides where nothing else tells the conversation.
    about = {"x-request-id": "one"}
    if asked.session:
        about["x-session-affinity"] = asked.session
    headers += "".join(f"{name}: {value}\r\n" for name, value in about.items())
    lower = tuple((name.encode(), value.encode()) for name, value in about.items())
    async with (
        Upstream(answering(ok(b'{"id":"resp_3"}'))) as upstream,
        gateway(
            state=served_by(state_of(scene), upstream.url),
            settings=SETTINGS,
            tokenizer={"demo": demo_tokenizer()},
        ) as bench,
    ):
        loads = await prepare(bench, scene)
        question = Explain(lower, asked.body, asked.path, asked.tenant)
        bench.recorder.take_samples(1)
        refused: RequestError | None = None
        told: dict[str, Any] = {}
        try:
            told = await explainer(bench).explain(question)
        except RequestError as error:
            refused = error
        assert LOOP.stage == OTHER
        answer = await bench.ask(post(asked.path, asked.body, headers))
        assert LOOP.stage == OTHER
        if refused is not None:
            assert answer.status == refused.status
            assert refused.message in json.loads(answer.body)["error"]["message"]
        else:
            compare(bench, answer, told, left_alone(scene, told["model"], loads))
        for slot, count in loads.items():
            bench.board.add(slot, -count, 0)


def compare(bench: Bench, answer: Answer, told: dict[str, Any], left: dict[str, str]) -> None:
    """Hold what was told against what was done."""
    assert answer.status == 200
    assert answer.headers["x-tokenlane-replica"] == told["replica"]
    assert answer.headers["x-tokenlane-route"] == f"{told['policy']} {told['reason']}"
    chosen = next(row for row in told["replicas"] if row["chosen"])
    cached = answer.headers.get("x-tokenlane-cached-tokens")
    assert cached == (str(chosen["matched_tokens"]) if told["exact"] else None)
    (sample,) = bench.recorder.take_samples(0)
    done = {
        (f"r{one.slot}", one.cached_tokens, one.queued_tokens, round(one.cost, 1))
        for one in sample.candidates
    }
    assert done == {
        (row["replica"], row["matched_tokens"], row["queued_tokens"], row["cost"])
        for row in told["replicas"]
    }
    assert (sample.model, sample.prompt_tokens) == (told["model"], told["tokens"])
    assert {one["replica"]: one["reason"] for one in told["left_out"]} == left
    assert all(one["why"] == LEFT_OUT_WORDS[LeftOut(one["reason"])] for one in told["left_out"])


def served_by(state: FleetState, url: str) -> FleetState:
    """The same replicas, all answered for by one server."""
    moved = [
        type(one)(**{**{n: getattr(one, n) for n in one.__struct_fields__}, "url": url})
        for one in state.replicas
    ]
    return FleetState(state.version, tuple(moved))

"""A flood of requests no two of which are alike fills every part of the account, and none beyond
its limit."""

import os
from pathlib import Path

import pytest

from tests.admission.test_auth import ALICE, AUTH, bearer
from tests.raw import CHAT, TEXT, Upstream, answering, chat, json_bytes, ok, post
from tests.support import Bench, demo_tokenizer, gateway, listener
from tokenlane.config.settings import (
    AdmissionSettings,
    LogSettings,
    RoutingSettings,
    Settings,
    TokenSettings,
)
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.worker.gauges import Gauges
from tokenlane.worker.memory_account import memory_parts

COUNT = 250
LIMIT_BYTES = 1_200_000
# Where nothing is short, prompts leave prefixes and segments behind, and else openings.
KINDS = {
    0.0: {"request", "shape", "segment", "prefix"},
    10.0: {"request", "shape", "opening"},
}
OTHERS = {"heads", "index-own", "parents"}


def settings(thread_hop_s: float) -> Settings:
    return Settings(
        auth=AUTH,
        tokens=TokenSettings(cache_limit_bytes=LIMIT_BYTES, thread_hop_s=thread_hop_s),
        routing=RoutingSettings(index_limit_blocks=1000),
        admission=AdmissionSettings(concurrency_limit_count=100),
    )


async def ask_all(bench: Bench) -> None:
    """Long chats and short ones, of ever other roles, and prompts of many tiny parts."""
    client = await bench.client()
    for number in range(COUNT):
        system = {"role": "system", "content": f"{number} is what this one is about. " * 20}
        opened = [[system, {"role": "user", "content": f"{turn}?"}] for turn in range(2)]
        roles = [("user", "assistant")[number >> bit & 1] for bit in range(8)]
        talks = [
            [{"role": role, "content": f"{turn} says {role}"} for role in roles] for turn in "ab"
        ]
        asked = [
            *[
                (CHAT, json_bytes({"model": "demo", "messages": talk}))
                for talk in [*opened, *talks]
            ],
            (CHAT, chat(f"{number} and more words. " * 150)),
            (TEXT, json_bytes({"model": "demo", "prompt": [[number, one] for one in range(40)]})),
        ]
        headers = f"{bearer(ALICE)}x-correlation-id: {number}\r\nx-of: {number}\r\n"
        for path, body in asked:
            assert (await client.ask(post(path, body, headers))).status == 200


@pytest.mark.row("O5")
@pytest.mark.slow
@pytest.mark.parametrize("thread_hop_s", KINDS)
async def test_a_flood_leaves_each_part_within_its_limit(
    tmp_path: Path, thread_hop_s: float
) -> None:
    access = AccessLog(LogSettings(access=str(tmp_path / "log"), sample_ratio=1.0))
    descriptor = create_segment()
    segment, reader = MetricsSegment(descriptor), SegmentReader(descriptor)
    os.close(descriptor)
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(
            upstream.url, settings=settings(thread_hop_s), tokenizer=demo_tokenizer(), access=access
        ) as bench,
    ):
        accepting = listener()
        gauges = Gauges(
            segment, bench.gateway, bench.server, access, None, accepting, bench.recorder.forget
        )
        await ask_all(bench)
        access.close()
        parts = memory_parts(bench.gateway, bench.server, access, None)
        gauges.sample()
        accepting.close()
    written = {
        family: {labels[0]: value[0] for name, labels, value in reader.samples() if name is family}
        for family in (families.MEMORY_BYTES, families.MEMORY_LIMIT)
    }
    reader.close()
    for sizes in written.values():
        del sizes[families.OTHER]
    assert written[families.MEMORY_BYTES] == {name: part.size_bytes for name, part in parts.items()}
    filled = {name for name, part in parts.items() if part.size_bytes}
    assert filled >= OTHERS | {f"{kind}-cache" for kind in KINDS[thread_hop_s]}
    for name, limit_bytes in written[families.MEMORY_LIMIT].items():
        assert parts[name].size_bytes <= limit_bytes, name
    evicted = {kind for kind, counts in bench.tokens.budgets.counts().items() if counts.evictions}
    assert evicted == KINDS[thread_hop_s]
    known = [parts[name].size_bytes for name in parts if name.endswith("-cache")]
    assert sum(known) <= LIMIT_BYTES
    assert (parts["bodies"].size_bytes, parts["tokenizing"].size_bytes) == (0, 0)

"""Nobody's bytes cost a hundred times what they would as a plain chat, hold the loop for 50 ms, or
stay: the worst inputs that the search found, and those that once were worse."""

import pytest

from tests.amplification import meter, page
from tests.amplification.channels import CHANNELS, World, world
from tests.amplification.shapes import Shape, shape
from tests.amplification.worst import RATIO_LIMIT, TURN_LIMIT_S, Plain, read
from tests.machine import slowness

AIMS = ("cpu", "turn", "memory")
TRIES = 4
# Of seeds, where nothing worse is known.
SEED_BYTES = 64 * 1024
MEMORY_LIMIT = 100
# What any request takes, however short it is.
FEW_BYTES = 1024 * 1024

# What they cost before their channel was bounded: 17 hours for the first.
ONCE = {
    "a page whose labels have no end": (
        "/metrics",
        shape(b"vllm:cache_config_info{", b"a", b"} 1\n"),
    ),
    "a list of many models": ("/v1/models", shape(b'{"data":[{"id":"a"}', b',{"id":"b"}', b"]}")),
    "a body of texts": ("messages body", shape(b'{"messages":[]', b',"a":"a":', b"}")),
    "a page of empty lines": ("/metrics", shape(b'"', b"\n")),
    "a message of empty lists": ("KV events", shape(b"\x92\x00\xdd<#>", b"\x90")),
}


async def judged(at: World, plain: Plain, channel: str, one: Shape, size: int, aim: str) -> None:
    """Fails where each of a few tries was beyond the bound of CPU, of a turn, or of memory."""
    drive_of = CHANNELS[channel].drive
    data = one.bytes_of(min(size, CHANNELS[channel].limit_bytes))

    async def drive() -> int:
        return await drive_of(at, data)

    if aim == "cpu":
        used = [await meter.cpu(drive, at.peers)]
        while used[-1].cpu_s > RATIO_LIMIT * plain.cpu_s(used[-1].sent_bytes):
            assert len(used) < TRIES, f"{channel}: {used[-1].cpu_s:.3f} s, 100 times a plain chat"
            used.append(await meter.cpu(drive, at.peers))
    elif aim == "turn":
        turns = [await meter.turn(drive, at.peers)]
        while turns[-1].turn_s > TURN_LIMIT_S * slowness():
            assert len(turns) < TRIES, f"{channel}: a turn of {turns[-1].turn_s * 1e3:.0f} ms"
            turns.append(await meter.turn(drive, at.peers))
    else:
        held = await meter.memory(drive, at.peers)
        assert held.peak_bytes < FEW_BYTES + MEMORY_LIMIT * held.sent_bytes, channel
        assert held.kept_bytes < FEW_BYTES + MEMORY_LIMIT * held.sent_bytes, channel


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
async def test_the_worst_known_inputs_are_within_bounds(channel: str) -> None:
    known = [(one.shape, one.size, one.aim) for one in read() if one.channel == channel]
    seeds = [(one, SEED_BYTES, aim) for one in CHANNELS[channel].seeds for aim in AIMS]
    async with world() as at:
        plain = await Plain.measured(at)
        for one, size, aim in known or seeds:
            await judged(at, plain, channel, one, size, aim)


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ONCE)
async def test_what_once_was_worse(kind: str) -> None:
    channel, one = ONCE[kind]
    async with world() as at:
        plain = await Plain.measured(at)
        for size in (64 * 1024, CHANNELS[channel].limit_bytes):
            for aim in AIMS:
                await judged(at, plain, channel, one, size, aim)


def test_the_page_is_of_what_was_found() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(read())


def test_a_shape_has_the_size_asked_for() -> None:
    assert len(shape(b"ab", b"xyz", b"c").bytes_of(1000)) == 999


def test_known_inputs_have_known_channels() -> None:
    assert {one.channel for one in read()} <= set(CHANNELS)

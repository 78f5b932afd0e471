"""Every case of the corpus, at once and byte by byte: the requests that replicas see are those the
gateway built, one for each it answered, in one canonical form."""

import asyncio

import pytest

from tests.conformance import published
from tests.conformance.corpus import Case, cases
from tests.conformance.observe import PROBE, Observed, Recorder, Request, observe
from tests.http.heads import CANARY
from tests.raw import CHAT, Upstream
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings

SHORT = Settings(server=ServerSettings(head_deadline_s=0.1, body_deadline_s=0.1))
_FORBIDDEN = {b"transfer-encoding", b"connection", b"upgrade", b"expect", b"trailer", b"te"}


def _rows(case: Case) -> list[str]:
    """Its own, and that of the published lists if it stands for a case of theirs."""
    return [case.row, *(["H15"] if case.id in published.replayed() else [])]


def test_the_corpus_is_large_enough() -> None:
    assert len(cases()) >= 150


def check(case: Case, seen: Observed, requests: list[Request], host: bytes) -> None:
    """What the client saw and what the replica got is what the case says, and nothing else."""
    assert seen.statuses == case.statuses
    assert seen.stays != case.closes
    assert not any(CANARY.encode() in body for body in seen.bodies)
    if seen.stays:
        probe = requests.pop()
        assert (probe.target, probe.body) == (CHAT.encode(), PROBE)
    assert tuple((one.target, one.body) for one in requests) == case.asked
    for one in requests:
        assert one.values(b"host") == [host]
        assert one.values(b"content-length") == [b"%d" % len(one.body)]
        assert len(one.values(b"x-request-id")) == 1
        assert not _FORBIDDEN & {name for name, _ in one.headers}
        assert not any(b"_" in name for name, _ in one.headers)
        for name, value in case.fields.items():
            assert one.values(name) == ([] if value is None else [value])


@pytest.mark.row("S12")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=pytest.mark.row(*_rows(case))) for case in cases()],
)
async def test_case(case: Case) -> None:
    recorder = Recorder()
    settings = SHORT if case.waits else Settings()
    async with Upstream(recorder) as upstream:
        host = upstream.url.removeprefix("http://").encode()
        async with gateway(upstream.url, settings=settings) as bench:

            async def sent(slowly: bool) -> None:
                seen = await observe(await bench.client(), case, slowly=slowly)
                check(case, seen, recorder.requests, host)
                recorder.requests.clear()

            if case.waits:  # no replica sees any of it, so one deadline is enough
                assert case.asked == ()
                await asyncio.gather(sent(False), sent(True))
            else:
                await sent(False)
                await sent(True)

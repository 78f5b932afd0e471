"""The live page: as files, and in a real browser in front of a real gateway."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Never

import aiohttp
import pytest
from aiohttp import web

from tests import browser
from tests.control.dashboard.test_screen import live_of
from tests.paths import ROOT
from tests.support import listener
from tokenlane.control.dashboard.live import Flow, Hour, Live
from tokenlane.control.dashboard.page import page_routes
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

DRAWING = ROOT / "proxy" / "tokenlane" / "control" / "dashboard" / "assets" / "drawing.js"
LIMIT_BYTES = 100_000
PATHS = ("/", "/style.css", "/drawing.js", "/page.js")


def nothing() -> Never:
    """The numbers, where nobody asks for them."""
    raise AssertionError("not asked for")


@asynccontextmanager
async def served(
    live: Callable[[], Live] = nothing, hour: Callable[[], Hour] = nothing
) -> AsyncIterator[str]:
    """The URL of the page without a gateway."""
    app = web.Application()
    app.add_routes(page_routes(live, hour))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    sock = listener()
    await web.SockSite(runner, sock).start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
    finally:
        await runner.cleanup()


async def test_the_page_is_small_and_asks_nobody_else() -> None:
    size_bytes = 0
    async with served() as url, aiohttp.ClientSession(url) as session:
        for path in PATHS:
            async with session.get(path) as response:
                assert response.status == 200
                text = await response.text()
                policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            size_bytes += len(text.encode())
            elsewhere = re.findall(r"(?:https?:)?//[\w.-]+", re.sub(r"//? .*", "", text))
            assert set(elsewhere) <= {"http://www.w3.org"}  # the name of SVG, never fetched
            assert "innerHTML" not in text
    assert size_bytes < LIMIT_BYTES


PHONE_LIMIT_PX = 2500
# What sticks out of a page of 360 px.
STICKS_OUT = (
    "[...document.querySelectorAll('main *')].filter(one =>"
    " one.getBoundingClientRect().right > 361).map(one => one.outerHTML.slice(0, 200))"
)
PACE = ("--token-interval-s", "0.02")
FLEETS: list[FleetProcess] = []
ASK = {"model": "demo", "stream": True, "max_tokens": 3}
SYSTEM = "You answer with care. " * 60


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_numbers_are_rounded_before_they_get_their_unit() -> None:
    shown = {
        "count(9999)": "9,999",
        "count(10000)": "10.0k",
        "count(999499)": "999k",
        "count(999999)": "1.00M",
        "count(999999999)": "1.00G",
        "count(-999999)": "-1.00M",
        "count(1e12)": "1.00T",
        "time(0.0009994)": "999 µs",
        "time(0.0009996)": "1.0 ms",
        "time(0.0994)": "99 ms",
        "time(0.9994)": "999 ms",
        "time(0.9996)": "1.00 s",
        "time(99.96)": "100 s",
    }
    script = DRAWING.read_text(encoding="utf-8")
    script += f"console.log(JSON.stringify([{', '.join(shown)}]));"
    done = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == list(shown.values())


needs_browser = pytest.mark.skipif(browser.PROGRAM is None, reason="needs chromium")


def killed(replica: str) -> None:
    """Kill the process of a simulated replica (HOST:PORT) that has one for itself."""
    (fleet,) = [one for one in FLEETS if one.urls[0].endswith(replica)]
    os.kill(fleet.pid, signal.SIGKILL)


@asynccontextmanager
async def gateway(
    fleets: Sequence[Sequence[str]] = (PACE,),
    replicas: int = 2,
) -> AsyncIterator[tuple[str, str, asyncio.subprocess.Process]]:
    """URLs of the data and the admin port, and the process. fleets: the flags of each process of
    simulated replicas, which share the number of these."""
    with contextlib.ExitStack() as stack:
        each = replicas // len(fleets)
        FLEETS[:] = [
            stack.enter_context(FleetProcess(each, free_ports(each), flags)) for flags in fleets
        ]
        urls = [url for fleet in FLEETS for url in fleet.urls]
        backends = [word for url in urls for word in ("--backend", url)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenlane", "serve", *backends,
            "--tokenizer", f"demo={demo_folder()}", "--port", "0", "--admin-port", "0",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            said = [(await process.stdout.readline()).decode() for _ in range(2)]
            data, admin = (re.findall(r"http://[\d.:]+", line)[0] for line in said)
            yield data, admin, process
        finally:
            if process.returncode is None:
                process.terminate()
            assert process.stdout is not None
            await process.stdout.read()
            await process.wait()


async def chat(url: str) -> None:
    """A conversation of two turns, so that there is a cold prompt and one with a prefix."""
    async with aiohttp.ClientSession(url) as session:
        for turns in (1, 3):
            content = [{"role": "user", "content": SYSTEM}] * turns
            async with session.post(
                "/v1/chat/completions", json=ASK | {"messages": content}
            ) as answer:
                assert answer.status == 200
                await answer.read()


@needs_browser
@pytest.mark.slow
async def test_the_page_in_a_browser() -> None:
    async with gateway() as (data, admin, _), browser.browser() as page:
        await page.look()
        await page.go(admin)
        await page.until("document.querySelector('#state')?.textContent === 'serving'")
        await chat(data)
        await page.until("document.querySelectorAll('#decisions details').length >= 2")
        text = await page.run("document.body.innerText")
        for shown in ("affinity", "all 2 up", "Loop lateness", "demo", "all 1 ready; worst "):
            assert shown in text
        # Folded while nothing is wrong.
        for fold, inside in (("loops", "Restarts"), ("ladder", "token-input")):
            assert inside not in text
            await page.run(f"document.querySelector('#{fold}').open = true")
            assert inside in await page.run("document.body.innerText")
        async with aiohttp.ClientSession(admin) as session, session.get("/live.json") as answer:
            live = json.loads(await answer.read())
        for row in live["replicas"]:
            assert row["id"] in text

        # A decision opens into its sentence and its table, and stays open while others come.
        await page.run("document.querySelector('#decisions details').open = true")
        await page.until("document.querySelectorAll('#decisions .more tr').length === 3")
        await chat(data)
        await page.until("document.querySelectorAll('#decisions details').length >= 4")
        assert await page.run("document.querySelectorAll('#decisions details[open]').length") == 1
        why = live["decisions"][0]["why"]
        assert why in await page.run("document.querySelector('#decisions .more').textContent")

        # Settings in force, those that were given first.
        await page.run("document.querySelector('#config').open = true")
        await page.until("document.querySelectorAll('#settings tr').length > 40")
        assert await page.run("document.querySelector('#settings td').textContent") == "backends"

        # On a phone nothing sticks out; in the dark the ground is dark.
        await page.look(360, 740, dark=True)
        assert await page.run(STICKS_OUT) == []
        assert await page.run("document.documentElement.scrollWidth") <= 360
        ground = await page.run("getComputedStyle(document.documentElement).backgroundColor")
        assert max(int(part) for part in re.findall(r"\d+", ground)) < 60

        assert page.complaints == []
        assert {url.removeprefix(admin).lstrip("/") for url in page.requests} <= {
            "", "style.css", "drawing.js", "page.js", "live.json", "hour.json",
        } | {url for url in page.requests if url.startswith("data:")}  # fmt: skip


@needs_browser
async def test_a_slow_replica_stands_out_in_the_hour() -> None:
    live = live_of(rows=4)
    slow = live.replicas[2].id = "10.0.0.3:8000"
    live.replicas[1].id, live.replicas[3].id = "10.0.0.2:8000", "10.0.0.4:8000"
    flows = {
        row.id: Flow(
            requests_per_s=[2.0] * 120,
            failed_per_s=[0.0] * 120,
            ttft_p50_s=[None, *[1.5 if row.id == slow else 0.05] * 119],
            hit_rate=[0.75] * 120,
        )
        for row in live.replicas
    }
    hour = Hour(period_s=30.0, flows=flows)
    async with served(lambda: live, lambda: hour) as url, browser.browser() as page:
        await page.look(360, 740)
        await page.go(url)
        await page.until("document.querySelectorAll('#flows svg').length === 16")
        assert "over the last hour; " in await page.run("document.body.innerText")
        # By the height of their lines.
        height = "one => Math.round(one.querySelectorAll('path')[1].getBBox().y)"
        pictures = "[...document.querySelectorAll('#flows td:nth-child(4) svg')]"
        heights = await page.run(f"{pictures}.map({height})")
        assert heights == [39, 39, 2, 39]
        label = f"{pictures}[2].getAttribute('aria-label')"
        assert await page.run(label) == f"{slow}: TTFT p50, the last hour, at most 1.50 s"
        assert await page.run(STICKS_OUT) == []
        assert await page.run("document.documentElement.scrollWidth") <= 360
        live.fleet = live.config = None
        await page.until("document.querySelector('#fleet').hidden")
        assert await page.run("document.documentElement.scrollHeight") < PHONE_LIMIT_PX
        assert page.complaints == []


@needs_browser
@pytest.mark.slow
async def test_a_replica_that_dies_under_load_is_told_with_what_was_cut() -> None:
    async with gateway([PACE, PACE]) as (data, admin, _), browser.browser() as page:
        await page.look()
        await page.go(admin)
        await page.until("document.querySelector('#verdict')?.textContent === 'all 2 up'")
        async with aiohttp.ClientSession(data) as session:
            body = ASK | {"max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}
            streams = [await session.post("/v1/chat/completions", json=body) for _ in range(6)]
            loop = asyncio.get_running_loop()
            reading = [loop.create_task(one.read()) for one in streams]
            doomed = streams[0].headers["x-tokenlane-replica"]
            cut = sum(one.headers["x-tokenlane-replica"] == doomed for one in streams)
            killed(doomed)
            wanted = f"1 of 2 up; {doomed} down since "
            shown = f"document.querySelector('#verdict').textContent.startsWith('{wanted}')"
            await page.until(shown)
            lost = f"{cut} answer{'s' if cut > 1 else ''} cut"
            await page.until(f"document.querySelector('#verdict').textContent.endsWith('{lost}')")
            for task, stream in zip(reading, streams, strict=True):
                task.cancel()
                stream.close()
        sentence = await page.run("document.querySelector('#verdict').textContent")
        assert ", connection refused; " in sentence
        events = await page.run("document.querySelector('#happened').innerText")
        assert f"{doomed} is down: connection refused" in events
        assert f"answers cut short: {cut}" in events
        assert page.complaints == []


@needs_browser
@pytest.mark.slow
async def test_a_slow_replica_is_named() -> None:
    usual, slow = "--token-interval-s 0.02".split(), "--token-interval-s 0.1".split()
    async with (
        gateway([usual, usual, usual, slow], 4) as (data, admin, _),
        browser.browser() as page,
    ):
        (url,) = FLEETS[-1].urls
        replica = url.partition("://")[2]
        await page.look()
        await page.go(admin)
        await page.until("document.querySelector('#verdict')?.textContent === 'all 4 up'")

        async def ask(number: int) -> None:
            async with aiohttp.ClientSession(data) as session:
                while True:
                    content = f"{number} {SYSTEM}"
                    body = ASK | {
                        "max_tokens": 8,
                        "messages": [{"role": "user", "content": content}],
                    }
                    async with session.post("/v1/chat/completions", json=body) as answer:
                        await answer.read()

        loop = asyncio.get_running_loop()
        asking = [loop.create_task(ask(number)) for number in range(24)]
        began_s = loop.time()
        try:
            shown = "document.querySelector('#verdict').textContent"
            await page.until(f"{shown}.startsWith('all 4 up; {replica} is ')")
            assert loop.time() - began_s < 60
            row = "[...document.querySelectorAll('#replicas tbody tr')]"
            slow_rows = f"{row}.filter(one => one.textContent.includes('slow'))"
            assert await page.run(f"{slow_rows}.map(one => one.cells[0].textContent)") == [replica]
            events = await page.run("document.querySelector('#happened').innerText")
            assert f"{replica} is " in events
            assert "times slower than its like" in events
        finally:
            for task in asking:
                task.cancel()
        assert page.complaints == []


@needs_browser
@pytest.mark.slow
async def test_a_phone_s_page_is_short_and_a_stall_that_matters_opens_its_fold() -> None:
    async with gateway(replicas=4) as (data, admin, _), browser.browser() as page:
        await chat(data)
        await page.look(360, 740)
        await page.go(admin)
        await page.until("document.querySelectorAll('#decisions details').length")
        many = "{length: 15}, (_, at) => ({...live.decisions[0], number: 1000 + at})"
        await page.run(f"paused = true; live.decisions = Array.from({many}); draw()")
        assert await page.run("document.documentElement.scrollHeight") < 2500
        opened = "[...document.querySelectorAll('details[open]')].map(one => one.id)"
        assert await page.run(opened) == []
        # One line for each request.
        await page.run("document.querySelector('#routing').open = true")
        height = "document.querySelector('#decisions details').getBoundingClientRect().height"
        assert await page.run(height) < 36
        await page.run("document.querySelector('#routing').open = false")
        for cause, worst_s, news in (
            ("os", 0.3, []), ("relay", 0.006, []), ("relay", 0.3, ["loops"]), ("relay", 0.006, []),
        ):  # fmt: skip
            row = {"cause": cause, "count": 1, "total": 5, "worst_s": worst_s}
            await page.run(f"live.stalls = [{json.dumps(row)}]; draw()")
            assert await page.run(opened) == news
        assert page.complaints == []


@needs_browser
@pytest.mark.slow
async def test_names_from_elsewhere_are_text_and_a_lost_gateway_is_said() -> None:
    # A model may be called anything.
    evil = "<img src=x onerror=alert(1)>"
    async with gateway() as (_, admin, process), browser.browser() as page:
        await page.look(800)
        await page.go(admin)
        await page.until("document.querySelector('#state')?.textContent === 'serving'")
        await page.run(
            f"live.policy = live.replicas[0].id = {json.dumps(evil)}; paused = true;"
            "live.stalls = [{cause: 'gc', count: 1, total: 5}, {cause: 'os', count: 0, total: 0}];"
            "draw(); document.querySelector('#loops').open = true"
        )
        stalls = await page.run("document.querySelector('#stalls').innerText")
        assert "gc" in stalls
        assert "1 just now" in stalls
        assert "os" not in stalls.split()
        assert evil in await page.run("document.body.innerText")
        assert await page.run("document.querySelectorAll('img').length") == 0
        assert page.complaints == []
        process.terminate()
        await page.run("paused = false")
        await page.until("document.querySelector('#state').textContent.startsWith('no answer')")

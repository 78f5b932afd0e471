"""A page of another origin in a real browser: it may ask, streams too, where the operator says."""

import pytest

from tests import browser, support
from tests.clients.scene import serving
from tests.raw import CHAT, Upstream, answering, chat, ok, post
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.http.cors import is_origin
from tokenlane.http.server import Exchange

FETCH = """
(async () => {
  window.said = "";
  try {
    const answer = await fetch("%s/v1/chat/completions", {
      method: "POST",
      headers: {"content-type": "application/json", "authorization": "Bearer x", "x-mine": "1"},
      body: JSON.stringify({model: "demo", stream: true, max_tokens: 4,
                            messages: [{role: "user", content: "hi"}]}),
    });
    window.id = answer.headers.get("x-request-id");
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (let part; !(part = await reader.read()).done;) window.said += decoder.decode(part.value);
    window.end = "done";
  } catch (problem) { window.end = String(problem); }
})()
"""


async def _page(exchange: Exchange) -> None:
    exchange.respond(200, ((b"content-type", b"text/html"),), b"<title>x</title>")


@pytest.mark.parametrize(
    ("origin", "allowed", "told"),
    [
        ("https://a.example", ("https://a.example",), "https://a.example"),
        ("https://b.example", ("https://a.example",), None),
        ("https://b.example", ("*",), "*"),
        ("https://b.example", (), None),
    ],
)
async def test_what_a_browser_is_told(
    origin: str, allowed: tuple[str, ...], told: str | None
) -> None:
    settings = Settings(server=ServerSettings(cors_origins=allowed))
    fields = f"origin: {origin}\r\n"
    wants = "access-control-request-headers: authorization,x-a\r\n"
    async with Upstream(answering(ok())) as upstream:
        async with support.gateway(upstream.url, settings=settings) as bench:
            before = await bench.ask(
                f"OPTIONS {CHAT} HTTP/1.1\r\nhost: g\r\n{fields}{wants}\r\n".encode(), "OPTIONS"
            )
            assert before.status == (200 if told else 405)
            assert before.headers.get("access-control-allow-origin") == told
            if told:
                assert before.headers["access-control-allow-headers"] == "authorization,x-a"
            for request in (post(CHAT, chat(), fields), post("/x", b"", fields)):
                answer = await bench.ask(request)
                assert answer.headers.get("access-control-allow-origin") == told
                assert ("origin" in answer.headers.get("vary", "")) == bool(allowed)
        (asked,) = upstream.asked
        assert bool(asked.values(b"origin")) == (not allowed)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("*", True),
        ("https://app.example", True),
        ("http://localhost:3000", True),
        ("https://app.example/", False),
        ("https://App.example", False),
        ("app.example", False),
        ("https://", False),
        ("https://a\r\nx: y", False),
        ("null", False),
    ],
)
def test_origins(text: str, good: bool) -> None:
    assert is_origin(text) == good


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="needs chromium")
async def test_a_page_asks() -> None:
    async with support.serving(_page) as site, browser.browser() as page:
        origin = f"http://127.0.0.1:{site.port}"
        for origins in ((origin,), ("*",), ("https://other.example",)):
            server = ServerSettings(cors_origins=origins)
            async with serving(server=server, keeping=True) as (bench, _):
                await page.go(origin)
                await page.until("document.title == 'x'")
                await page.run(FETCH % f"http://127.0.0.1:{bench.port}")
                end = await page.until("window.end")
                if origins[0].startswith("https"):
                    assert "Failed to fetch" in end
                    assert not await page.run("window.said")
                else:
                    assert end == "done"
                    assert (await page.run("window.said")).endswith("data: [DONE]\n\n")
                    assert await page.run("window.id")

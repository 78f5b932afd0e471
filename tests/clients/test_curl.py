"""curl against a gateway: the line that `make run` prints, and a stream as it comes."""

import asyncio
import json
import shlex
import shutil

import pytest

from tests.clients.scene import serving
from tokenlane.cli.verbs.serving import curl_line

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


async def shell(line: str) -> bytes:
    """What it prints; fails the test where it does not succeed."""
    process = await asyncio.create_subprocess_shell(line, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said


async def test_the_line_of_make_run() -> None:
    async with serving() as (bench, _):
        line = curl_line(f"http://127.0.0.1:{bench.port}")
        assert line.startswith("curl ")
        said = json.loads(await shell(line))
        assert said["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, b"[DONE]"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, b"message_stop"),
        ("/v1/responses", {"input": "x"}, b"response.completed"),
    ],
)
async def test_a_stream(path: str, body: dict[str, object], end: bytes) -> None:
    asked = {"model": "demo", "stream": True, "max_tokens": 4, **body}
    async with serving() as (bench, _):
        url, json_type = f"http://127.0.0.1:{bench.port}{path}", "content-type: application/json"
        words = ["curl", "-sSN", "--fail", url, "-H", json_type, "-d", json.dumps(asked)]
        said = await shell(shlex.join(words))
        assert end in said.split(b"\n\n")[-2]

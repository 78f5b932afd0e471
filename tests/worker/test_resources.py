"""What a worker loads before it serves leaves the loop's thread ready to encode, and to meet
replicas on https."""

import os
import subprocess
import sys

import pytest

from tokenlane.config.settings import DiscoverySettings, Settings, UpstreamSettings
from tokenlane.config.tls import system_context
from tokenlane.http.pool import ReplicaPool
from tokenlane.tokens.demo import demo_folder
from tokenlane.worker.resources import upstream_tls

# A million words that nobody has said before, as the loop encodes them, and what they took of
# memory in MB: where the encoder's table doubles for them, it takes 64 MB.
ASKED = """
import asyncio, random, sys
from pathlib import Path
from tokenlane.config.settings import TokenSettings
from tokenlane.tokens.tokenizer import Tokenizer
from tokenlane.worker.resources import load_tokenizers

LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    folder = sys.argv[2]
    if sys.argv[1] == "ready":
        loaded = await load_tokenizers(TokenSettings(folders={"m": folder}))
        tokenizer = loaded["m"]
    else:
        tokenizer = Tokenizer.load("m", Path(folder))
    before_bytes = resident_bytes()
    draw = random.Random(1)
    for _ in range(1000):
        words = draw.randbytes(4000).hex(" ", 4).translate(LETTERS)
        tokenizer.encode(words, add_special_tokens=False)
    print((resident_bytes() - before_bytes) // 1_000_000)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("settings", "https"),
    [
        (Settings(backends=("http://a:1",)), False),
        (Settings(backends=("http://a:1", "https://b:1")), True),
        (Settings(discovery=DiscoverySettings(dns=("http://vllm:8000",), file="/x")), False),
        (Settings(discovery=DiscoverySettings(dns=("https://vllm:8000",))), True),
        (Settings(discovery=DiscoverySettings(kubernetes_scheme="https")), True),
    ],
)
def test_replicas_on_https_share_a_context_made_before_the_worker_serves(
    settings: Settings, https: bool
) -> None:
    assert upstream_tls(settings) is (system_context() if https else None)


def test_replicas_that_are_found_on_https_share_a_context() -> None:
    made = [ReplicaPool(f"https://{host}:1", UpstreamSettings())._tls for host in "ab"]
    assert made == [system_context()] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc tells of its memory")
def test_the_loops_table_of_words_has_its_full_size() -> None:
    def grown_mb(kind: str) -> int:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        asked = [sys.executable, "-c", ASKED, kind, str(demo_folder())]
        return int(subprocess.check_output(asked, env=env))

    assert grown_mb("ready") < 40 < grown_mb("unprepared") - 20

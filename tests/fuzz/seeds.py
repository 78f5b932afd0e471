"""Where the search begins: inputs that mean something, from the tests' own data."""

from tests.conformance.corpus import CHUNKED_HEAD, cases
from tests.faults.streams import recorded
from tests.raw import chat, json_bytes, ok

_CONFIGS = (
    b"server: {port: 8080, host: 127.0.0.1}\nbackends: [http://127.0.0.1:8000]\n",
    b"routing:\n  policy: affinity\n  alpha: 0.1\nhealth: {failure_limit_count: 3}\n",
    b"prices: {demo: {input_per_million: 1.5}}\ntokens: {folders: {demo: /x}, threads: 2}\n",
    b"a: &a [1, 2]\nb: *a\nc: 2001-12-14t21:59:43.10-05:00\nd: !!binary aGk=\ne: 0x1F\n",
    # What crashed once.
    b"a: 0000-00-00",
    b"a: 0x_",
    b"a: !!int x",
    b"a: !!timestamp x",
    b"[" * 100,
    b"backends: &a [*a]",
    b"server: &a {port: *a}",
)
_NO_CUTS = b"\x00\x40\x80\xc0"


def seeds(name: str) -> list[bytes]:
    """Of one property; short ones, so that a mutation hits something."""
    short = [case.data for case in cases() if len(case.data) < 2000]
    if name == "head":
        return [data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for data in short]
    if name == "chunked":
        size = len(CHUNKED_HEAD)
        return [_NO_CUTS + data[size:] for data in short if data.startswith(CHUNKED_HEAD)]
    if name == "response":
        heads = [one.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for one in recorded()]
        behind = ok(b"\r\ncontent-length: 5\r\n\r\n")  # a length that is no part of the head
        return [*heads, ok(), ok(b"", "connection: close\r\n"), behind]
    if name == "events":
        return [_NO_CUTS + one.payload for one in recorded()]
    if name == "body":
        extra = {"stream": True, "n": 2, "cache_salt": "s", "tools": [{"type": "function"}]}
        texts = [json_bytes({"model": "demo", "prompt": prompt}) for prompt in ("a", ["a"], [1])]
        not_text = [
            chat("Hi").replace(b"Hi", bad) for bad in (b"\xff", b"\\ud800", b"\xed\xa0\x80")
        ]
        return [chat(), chat("é", **extra), chat(model=None), *texts, *not_text]
    if name == "yaml":
        return list(_CONFIGS)
    return [bytes([at, *range(at, 256, 7)]) for at in range(0, 256, 16)]

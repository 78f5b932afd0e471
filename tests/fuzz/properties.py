"""What must hold for any bytes at all. Hypothesis draws them in the tests, atheris by coverage
(`make fuzz`); both call the same functions.

Invariants:
- A property raises nothing but AssertionError, and reads no clock.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import h11
import msgspec

from tests.fuzz import whole
from tests.fuzz.trees import tree
from tests.support import demo_tokenizer
from tokenlane.config import loading as configuration
from tokenlane.config.options import OPTIONS
from tokenlane.config.settings import ServerSettings, Settings, TokenSettings
from tokenlane.config.settings_file import SettingsFile
from tokenlane.errors import ConfigError, ConfigProblems, RequestError
from tokenlane.http.chunked import ChunkedReader, ChunkError
from tokenlane.http.framing import origin_form
from tokenlane.http.heads import RequestHeads, parse_response
from tokenlane.protocols.bodies import Kind, OtherBody, Prompted
from tokenlane.protocols.inspection import inspect
from tokenlane.relay.sse import EventScanner
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.job import TokenJob
from tokenlane.tokens.keys import prompt_size_bytes
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel

_FILE = Path("file")
_YAML_LIMIT_BYTES = 200
_STATUSES = {400, 405, 414, 415, 417, 431, 501, 505}


def _holds(truth: bool) -> None:
    assert truth


def _cuts(data: bytes) -> tuple[list[int], bytes]:
    """Where to cut, from the first bytes, and the rest."""
    rest = data[4:]
    return sorted({cut * len(rest) // 256 for cut in data[:4]}), rest


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *cuts, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def head(data: bytes) -> None:
    """A request head that passes is what h11 reads, too."""
    data = data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else data + b"\r\n\r\n"
    try:
        parsed, length_bytes = RequestHeads(ServerSettings()).parse(data)
    except RequestError as refused:
        _holds(refused.status in _STATUSES)
        return
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    parser.receive_data(data)
    event = parser.next_event()
    assert isinstance(event, h11.Request)
    assert parsed.method.encode() == event.method
    assert parsed.target == origin_form(event.target)
    # h11 writes the coding in lower case.
    lowered = [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in parsed.headers]
    assert lowered == list(event.headers)
    named = dict(event.headers)
    assert parsed.chunked == (b"transfer-encoding" in named)
    assert length_bytes == int(named.get(b"content-length", b"0"))


def response(data: bytes) -> None:
    """A replica's head is read or refused. As in the gateway, it ends where a head ends."""
    data = data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else data + b"\r\n\r\n"
    try:
        parsed, length_bytes = parse_response(data, "POST")
    except ValueError:
        return
    assert 100 <= parsed.status <= 599
    assert length_bytes >= 0
    assert parsed.chunked + parsed.endless + bool(length_bytes) <= 1


def _read(pieces: list[bytes]) -> tuple[bytes, int] | None:
    """Payload and consumed bytes of a chunked body; None where it is malformed."""
    reader = ChunkedReader()
    payload, consumed = b"", 0
    for piece in pieces:
        if reader.done:
            break
        try:
            found, used = reader.feed(piece)
        except ChunkError:
            return None
        payload += b"".join(found)
        consumed += used
    return (payload, consumed) if reader.done else (payload, -1)


def chunked(data: bytes) -> None:
    """A chunked body means the same however it is cut, and never more than h11 reads."""
    cuts, data = _cuts(data)
    whole = _read([data])
    assert whole == _read(_pieces(data, cuts))
    if whole is None or whole[1] < 0:
        return
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    parser.receive_data(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + data)
    payload = b""
    try:
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            payload += bytes(event.data) if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return  # it knows no white space before an extension
    assert payload == whole[0]
    assert len(parser.trailing_data[0]) == len(data) - whole[1]


def events(data: bytes) -> None:
    """Nothing in a stream raises, and what is kept of it is bounded."""
    cuts, data = _cuts(data)
    scanner = EventScanner()
    for piece in _pieces(data, cuts):
        scanner.feed(piece)
    scanner.usage()
    assert scanner.token_events >= scanner.tokens_seen


def body(data: bytes) -> None:
    """A body is a request or a 400, also once its prompt is tokenized; what is read of it is what
    Python's json reads."""
    for kind in Kind:
        try:
            request = inspect(kind, data)
        except RequestError as refused:
            _holds(refused.status == 400)
            continue
        if not isinstance(request, OtherBody):
            _tokenized(request)
        try:
            value: Any = json.loads(data)
        except (ValueError, RecursionError):
            continue
        assert request.model == value.get("model")


def _tokenized(request: Prompted) -> None:
    """Ids, a 400, or that they cannot be known, for a reason that was foreseen."""
    tokenizer = demo_tokenizer()
    caches = TokenCaches.of(CacheBudgets.of(TokenSettings()))
    size_bytes = prompt_size_bytes(request)
    model = LoadedModel(tokenizer, Speed(), caches)
    job = TokenJob(model, request, key=b"", size_bytes=size_bytes, block_tokens=16)
    error = job.run().error
    if isinstance(error, RequestError):
        _holds(error.status == 400)
    elif error is not None:
        _holds(error.reason != "failed")


def yaml(data: bytes) -> None:
    """The text of a settings file is loaded or refused with one sentence. Of a short text: nested
    deeply, PyYAML takes the square of its length."""
    try:
        text = data[:_YAML_LIMIT_BYTES].decode()
    except UnicodeDecodeError:
        return
    try:
        configuration.look(SettingsFile.of(_FILE, text)).sound()
    except ConfigError as refused:
        _holds(bool(str(refused)))


def config(data: bytes) -> None:
    """Whatever YAML may have made of a settings file: it is loaded, and then every setting is of
    its type, or refused with a sentence for each mistake."""
    values = tree(data)
    try:
        loaded = configuration.look(SettingsFile(_FILE, values)).sound()
    except ConfigProblems as refused:
        # What contradicts something else has its line, and here nothing has one.
        starts = ("file", *Settings.__struct_fields__)
        _holds(all(problem.startswith(starts) for problem in refused.problems))
        return
    except ConfigError as refused:
        _holds(bool(str(refused)))
        return
    assert set(loaded.origins) == set(OPTIONS)
    assert msgspec.convert(msgspec.to_builtins(loaded.settings), Settings) == loaded.settings


PROPERTIES = {
    "head": head,
    "response": response,
    "chunked": chunked,
    "events": events,
    "body": body,
    "yaml": yaml,
    "config": config,
    "request": whole.request,
    "answer": whole.answer,
}

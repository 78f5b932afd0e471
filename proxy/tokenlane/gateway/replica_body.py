"""A request's body for replicas: what the client sent, with the gateway's changes.

Invariants:
- The body is taken apart once, where something may have to change in it, and put together once.
  What a change does not name keeps its value, byte for byte; a body without changes is the
  client's own bytes.
- The last of repeated fields counts, here and in the replica.
- Ids go only in shapes whose answers were proven equal on real vLLM (`make test-vllm`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from tokenlane.parts import BodyParts, RawBody, whole
from tokenlane.prompt import Prompt
from tokenlane.protocols import json_values
from tokenlane.protocols.bodies import ABSENT, ChatBody, CompletionBody, Prompted
from tokenlane.telemetry.stalls.stages import AWAITING, ROUTE
from tokenlane.tokens.caches.listed_ids import ListedIds, ListedIdsCache

# Fields of completions that read the prompt's text, or that make vLLM count or cut tokens itself.
_OF_TEXT: Final = frozenset(
    "echo suffix prompt_embeds truncate_prompt_tokens truncation_side prompt_logprobs "
    "return_token_ids add_special_tokens".split()
)
# Below these sizes a thread takes longer to ask than the work itself: a copy; ids made into JSON.
_COPIED_BYTES: Final = 1024 * 1024
_IDS_BYTES: Final = 64 * 1024

_encode = msgspec.json.Encoder().encode


class ReplicaBody:
    """The body of one request. received: the client's bytes. fields: by their names, where it was
    taken apart. is_opaque: it cannot be. strict: it is JSON to every parser. made: with all
    changes, where it is put together."""

    __slots__ = (
        "_added", "_is_opaque", "_received", "_rewritten", "_strict", "_with_ids", "fields", "made",
    )  # fmt: skip

    def __init__(
        self,
        received: RawBody,
        fields: dict[str, msgspec.Raw] | None = None,
        *,
        strict: bool = True,
        is_opaque: bool = False,
    ) -> None:
        self._received = received
        self._is_opaque = is_opaque
        self.fields = fields
        self._strict = strict
        self._added: dict[str, bytes] | None = None
        self._rewritten = False
        self.made: RawBody | None = received
        self._with_ids: RawBody | None = None

    @property
    def raw(self) -> bytes:
        """The client's bytes in one."""
        self._received = raw = whole(self._received)
        return raw

    @classmethod
    def taken_apart(cls, raw: bytes) -> "ReplicaBody":
        """Return a body with its fields; without them where it is not an object, has too many, or
        one whose name is not text."""
        if not json_values.are_few(raw):
            return cls(raw, is_opaque=True)
        try:
            return cls(raw, json_values.strict_fields(raw))
        except ValueError:
            pass
        try:
            return cls(raw, json_values.fields(raw), strict=False)
        except ValueError:
            return cls(raw, is_opaque=True)

    def apart(self) -> "ReplicaBody":
        """Return it with its fields, as far as it can be taken apart."""
        if self.fields is not None or self._is_opaque:
            return self
        made = ReplicaBody.taken_apart(self.raw)
        for name, value in (self._added or {}).items():
            made.put(name, value)
        return made

    def copy(self) -> "ReplicaBody":
        """Return a copy that is changed independently."""
        fields = None if self.fields is None else dict(self.fields)
        made = ReplicaBody(self._received, fields, strict=self._strict, is_opaque=self._is_opaque)
        made._added = None if self._added is None else dict(self._added)
        made._rewritten, made.made = self._rewritten, self.made
        return made

    def put(self, name: str, value: bytes) -> None:
        """Set a field. value: JSON."""
        self._rewritten |= self.fields is not None and name in self.fields
        self._change(name, value)

    def drop(self, name: str) -> None:
        """Drop a field of a body that was taken apart."""
        self._rewritten = True
        self._change(name, None)

    def _change(self, name: str, value: bytes | None) -> None:
        self.made = None
        added = self._added
        if added is None:
            added = self._added = {}
        if value is None:
            added.pop(name, None)
            if self.fields is not None:
                self.fields.pop(name, None)
            return
        added[name] = value
        if self.fields is not None:
            self.fields[name] = msgspec.Raw(value)

    def change(self, changes: Mapping[str, bytes | None]) -> None:
        """Set fields; drop those that are None."""
        for name, value in changes.items():
            if value is None:
                self.drop(name)
            else:
                self.put(name, value)

    async def text(self) -> RawBody:
        """Return the body with all changes."""
        if self.made is None:
            self.made = await _made(self._put_together, len(self._received) <= _COPIED_BYTES)
        return self.made

    def _put_together(self) -> RawBody:
        if self._rewritten:
            return _encode(self.fields)
        received = self._received
        if isinstance(received, bytes) or b"}" not in received.rest:
            received = BodyParts([], self.raw)
        same, rest = received.same, received.rest.rstrip(b" \t\r\n")[:-1]
        added = b",".join(
            b'"%b":%b' % (name.encode(), value) for name, value in (self._added or {}).items()
        )
        comma = b"" if not same and rest.strip(b" \t\r\n") == b"{" else b","
        made = b"%b%b%b}" % (rest, comma, added)
        return BodyParts(same, made) if same else made

    def takes_ids(self, request: Prompted) -> bool:
        """Return whether replicas answer it by ids as by its text. request: what was read of it."""
        if type(request) is ChatBody:
            return (
                request.kv_transfer_params is ABSENT
                and request.truncate_prompt_tokens is ABSENT
                and request.truncation_side is ABSENT
                and request.return_prompt_text is ABSENT
                and request.echo is ABSENT
            )
        return self.fields is not None and self._strict and _OF_TEXT.isdisjoint(self.fields)

    async def with_ids(self, request: Prompted, prompt: Prompt, cache: ListedIdsCache) -> RawBody:
        """Return the body with packed ids: instead of a completion's prompt, beside a chat's
        messages, where servers that do not know the field go by these. cache: of ids as JSON."""
        if self._with_ids is None:
            text = await self.text()
            if not isinstance(text, bytes) and b"}" not in text.rest:
                text = whole(text)
            rest = text if isinstance(text, bytes) else text.rest
            make = self._prompt_as_ids if type(request) is CompletionBody else _beside
            listed = cache.find(prompt)
            unknown_bytes = sum(ids.unknown_bytes for ids in listed)
            short = len(rest) <= _COPIED_BYTES and unknown_bytes <= _IDS_BYTES
            made = whole(await _made(partial(make, rest, listed), short))
            self._with_ids = made if isinstance(text, bytes) else BodyParts(text.same, made)
        return self._with_ids

    def _prompt_as_ids(self, _text: bytes, listed: Sequence[ListedIds]) -> bytes:
        fields = self.fields
        assert fields is not None
        prompts = [b"[%b]" % b",".join(ids.items()) for ids in listed]
        single = bytes(memoryview(fields["prompt"])[:64]).lstrip()[:1] == b'"'
        prompt = prompts[0] if single else b"[%b]" % b",".join(prompts)
        return _encode({**fields, "prompt": msgspec.Raw(prompt)})


def _beside(text: bytes, listed: Sequence[ListedIds]) -> bytes:
    # Joined once, by the commas of all: copies of long bodies cost more than the ids.
    before = memoryview(text)[: text.rindex(b"}")]
    items = listed[0].items()
    items[0] = b'"kv_transfer_params":{"prompt_token_ids":[' + items[0]
    items[-1] += b"]}}"
    return b",".join((before, *items))


async def _made(make: Callable[[], RawBody], short: bool) -> RawBody:
    if short:
        return make()
    with AWAITING[ROUTE]:
        return await asyncio.get_running_loop().run_in_executor(None, make)

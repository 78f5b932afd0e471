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

import msgspec

from tokenlane.protocols import json_values
from tokenlane.protocols.bodies import ChatBody, CompletionBody, is_ids
from tokenlane.telemetry.stalls.stages import AWAITING, ROUTE
from tokenlane.tokens.ids import unpack

# Fields that read the prompt's text, or that make vLLM count or cut tokens itself.
_UNPROVEN = frozenset(
    "echo suffix prompt_embeds truncate_prompt_tokens truncation_side prompt_logprobs "
    "return_token_ids add_special_tokens".split()
)
_UNPROVEN_CHAT = _UNPROVEN | frozenset(
    "tools tool_choice documents continue_final_message mm_processor_kwargs "
    "kv_transfer_params".split()
)
# Ids are turned into JSON in batches of this many: a list of all of them would hold the GIL.
_BATCH = 2048
# Below these sizes joining is faster than a hop to a thread: a copy; ids made into JSON.
_COPIED_BYTES = 1024 * 1024
_IDS_BYTES = 8 * 1024

_encode = msgspec.json.Encoder().encode


class ReplicaBody:
    """The body of one request. raw: the client's bytes. fields: by their names, where it was taken
    apart. strict: it is JSON to every parser. made: with all changes, where it is put together."""

    __slots__ = ("_added", "_rewritten", "_strict", "_with_ids", "fields", "made", "raw")

    def __init__(
        self, raw: bytes, fields: dict[str, msgspec.Raw] | None = None, *, strict: bool = True
    ) -> None:
        self.raw = raw
        self.fields = fields
        self._strict = strict
        self._added: dict[str, bytes] | None = None
        self._rewritten = False
        self.made: bytes | None = raw
        self._with_ids: bytes | None = None

    @classmethod
    def taken_apart(cls, raw: bytes) -> "ReplicaBody":
        """Return a body with its fields; without them where it is not an object, has too many, or
        one whose name is not text."""
        if not json_values.are_few(raw):
            return cls(raw)
        try:
            return cls(raw, json_values.strict_fields(raw))
        except ValueError:
            pass
        try:
            return cls(raw, json_values.fields(raw), strict=False)
        except ValueError:
            return cls(raw)

    def copy(self) -> "ReplicaBody":
        """Return a copy that is changed independently."""
        fields = None if self.fields is None else dict(self.fields)
        made = ReplicaBody(self.raw, fields, strict=self._strict)
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

    async def text(self) -> bytes:
        """Return the body with all changes."""
        if self.made is None:
            self.made = await _made(self._put_together, len(self.raw) <= _COPIED_BYTES)
        return self.made

    def _put_together(self) -> bytes:
        if self._rewritten:
            return _encode(self.fields)
        rest = self.raw.rstrip(b" \t\r\n")[:-1]
        added = b",".join(
            b'"%b":%b' % (name.encode(), value) for name, value in (self._added or {}).items()
        )
        comma = b"" if rest.lstrip(b" \t\r\n") == b"{" else b","
        return b"%b%b%b}" % (rest, comma, added)

    async def with_ids(self, request: object, sequences: Sequence[bytes]) -> bytes:
        """Return the body with packed ids instead of its text; with the text where ids may not go.

        request: what was read of the body."""
        if self._with_ids is None:
            may = isinstance(request, ChatBody | CompletionBody) and self._takes_ids(request)
            if not may:
                return await self.text()
            fields = self.fields
            assert fields is not None

            def make() -> bytes:
                changed = _ids_fields(fields, sequences, chat=isinstance(request, ChatBody))
                return _encode({**fields, **changed})

            self._with_ids = await _made(make, len(self.raw) <= _IDS_BYTES)
        return self._with_ids

    def _takes_ids(self, request: ChatBody | CompletionBody) -> bool:
        unproven = _UNPROVEN_CHAT if isinstance(request, ChatBody) else _UNPROVEN
        if self.fields is None or not self._strict or is_ids(request):
            return False
        return unproven.isdisjoint(self.fields)


def _ids_fields(
    fields: Mapping[str, msgspec.Raw], sequences: Sequence[bytes], *, chat: bool
) -> dict[str, msgspec.Raw]:
    prompts = [_json_ids(ids) for ids in sequences]
    if chat:
        return {"kv_transfer_params": msgspec.Raw(b'{"prompt_token_ids":%b}' % prompts[0])}
    single = bytes(memoryview(fields["prompt"])[:64]).lstrip()[:1] == b'"'
    return {"prompt": msgspec.Raw(prompts[0] if single else b"[%b]" % b",".join(prompts))}


def _json_ids(ids: bytes) -> bytes:
    """Return a JSON array of packed ids."""
    step = 4 * _BATCH
    batches = (ids[at : at + step] for at in range(0, len(ids), step))
    return b"[" + b",".join(_encode(unpack(one).tolist())[1:-1] for one in batches) + b"]"


async def _made(make: Callable[[], bytes], short: bool) -> bytes:
    if short:
        return make()
    with AWAITING[ROUTE]:
        return await asyncio.get_running_loop().run_in_executor(None, make)

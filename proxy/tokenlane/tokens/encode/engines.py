"""Faster engines behind the reference ones: fastokens for encoding (for other tokenizers
`tokenlane.tokens.encode.words`), minijinja for templates.

Invariants:
- An engine gives what the reference gives, or None: then the reference is asked. So errors are
  always the reference's, and an engine that gives up costs time only.
- That it gives the same is known by a probe at load (`tokenlane.tokens.probe`), for templates also
  by what they are made of (`tokenlane.tokens.chat.constructs`).
- One encode runs on the calling thread alone; fastokens' without the GIL.
"""

import os
import struct
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenlane.tokens.chat import constructs

ENGINES = ("tokenizers", "fastokens", "jinja2", "minijinja")
_INT64 = 1 << 63
_Asked = ParamSpec("_Asked")
_Given = TypeVar("_Given")


class FastPaths(msgspec.Struct, frozen=True):
    """What works for a model. encoder: "fastokens", "words" or "tokenizers"; template: "minijinja",
    or "jinja2" where one of its templates needs it, "replica" where only that can render; why: by
    part, what keeps it from the fast path."""

    encoder: str = "tokenizers"
    template: str = "jinja2"
    why: dict[str, str] = {}

    def engines(self) -> tuple[tuple[str, str], ...]:
        """(part, engine) of each part."""
        return ("encoder", self.encoder), ("template", self.template)


class Refused(Exception):
    """An engine cannot do this tokenizer or template at all; the message says why."""


class Flat(Protocol):
    """fastokens' tokenizer, as far as it is used."""

    def encode_batch_flat(
        self, inputs: list[str], add_special_tokens: bool = False
    ) -> tuple[bytes, bytes]: ...


class FastEncoder:
    """Texts to packed ids. Safe to share between threads."""

    def __init__(self, tokenizer_json: str) -> None:
        """Raises Refused."""
        # Read when the engine first runs; without it one call spreads over all cores.
        os.environ["FASTOKENS_BPE_THREADS"] = "1"
        try:
            from fastokens import Tokenizer  # noqa: PLC0415 - after the variable
        except ImportError as error:
            raise Refused(str(error)) from None
        self._engine: Flat = _tried(Tokenizer.from_json_str, tokenizer_json)
        # The first call builds tables; no request should pay for it.
        self.encode(["warm up"], add_special_tokens=True)

    def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes] | None:
        """Packed ids of each text; None where the engine fails. Raises UnicodeEncodeError."""
        try:
            ids, bounds = _tried(self._engine.encode_batch_flat, texts, add_special_tokens)
        except Refused:
            return None
        if len(texts) == 1:
            return [ids]
        ends = struct.unpack(f"<{len(bounds) // 8}Q", bounds)
        return [ids[start * 4 : end * 4] for start, end in pairwise(ends)]


class FastTemplate:
    """One chat template. Safe to share between threads."""

    def __init__(self, source: str, reference: ImmutableSandboxedEnvironment) -> None:
        """reference: the environment whose filters, tests and functions count. Raises Refused."""
        tree = reference.parse(source)
        problem = constructs.refusal(tree)
        if problem:
            raise Refused(f"not known to be alike: {problem}")
        self._strips = constructs.strips(tree)
        try:
            from minijinja import Environment  # noqa: PLC0415 - may be missing
        except ImportError as error:
            raise Refused(str(error)) from None
        self._engine = Environment(
            trim_blocks=True, lstrip_blocks=True, auto_escape_callback=_never, debug=False
        )
        filters: dict[str, Any] = reference.filters
        tests: dict[str, Any] = reference.tests
        for name in ("tojson", "trim", "upper", "lower"):
            self._engine.add_filter(name, _careful(filters[name], within=True))
        for name in ("iterable", "sequence"):
            self._engine.add_test(name, _careful(tests[name], within=False))
        for name in ("raise_exception", "strftime_now"):
            self._engine.add_global(name, reference.globals[name])
        _tried(self._engine.add_template, "chat", source)

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str | None:
        """The prompt's text; None where the reference has to be asked."""
        if not _plain([messages, variables], controls=not self._strips):
            return None
        try:
            text = _tried(self._engine.render_template, "chat", messages=messages, **variables)
        except (Refused, UnicodeEncodeError):
            return None
        # It also stands for what is no Unicode, which the reference hands on to be refused.
        return None if "\ufffd" in text else text


def versions() -> str:
    """Of all engines, for what is remembered of them."""
    return " ".join(f"{name}={_version(name)}" for name in ENGINES)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _tried(call: Callable[_Asked, _Given], *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Given:
    """What the engine gives. Raises Refused where it fails, UnicodeEncodeError as it is."""
    try:
        return call(*args, **kwargs)
    except UnicodeEncodeError:
        raise
    except BaseException as error:
        # A panic of an engine's Rust code is no Exception to Python.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise Refused(f"{type(error).__name__}: {error}"[:200]) from None


def _never(_: str) -> bool:
    return False


def _careful(function: Callable[..., Any], *, within: bool) -> Callable[..., Any]:
    """Gives up on a null, and on one within the value: what is undefined arrives as one."""

    def careful(value: Any, *args: Any, **kwargs: Any) -> Any:
        held: Any = ()
        if within and isinstance(value, dict | list | tuple):
            held = value.values() if isinstance(value, dict) else value
        if value is None or None in held:
            raise TemplateError("null or undefined")
        return function(value, *args, **kwargs)

    return careful


def _plain(values: list[Any], *, controls: bool) -> bool:
    """Whether all of JSON values are of kinds that both engines print and compare alike: no floats,
    no long integers; controls: separators like U+001C are alike, too."""
    waiting = values
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is str:
            if not controls and (
                "\x1c" in value or "\x1d" in value or "\x1e" in value or "\x1f" in value
            ):
                return False
        elif kind is dict:
            waiting.extend(value.values())
            if not controls:
                waiting.extend(value)
        elif kind is list:
            waiting.extend(value)
        elif kind is int:
            if not -_INT64 <= value < _INT64:
                return False
        elif kind is not bool and value is not None:
            return False
    return True

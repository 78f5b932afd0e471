"""Faster engines in front of the reference ones: which of them work for a model, and how one is
called.

fastokens encodes (`tokenlane.tokens.encode.fastokens_encoder`), minijinja renders
(`tokenlane.tokens.chat.minijinja_template`).

Invariants:
- An engine gives what the reference gives, or None: then the reference is asked. So errors are
  always the reference's, and an engine that gives up costs time only.
- A probe at load shows that it gives the same (`tokenlane.tokens.probe`).
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final, ParamSpec, TypeVar

import msgspec

ENGINES: Final = ("tokenizers", "fastokens", "jinja2", "minijinja")
_Asked = ParamSpec("_Asked")
_Given = TypeVar("_Given")


class FastPaths(msgspec.Struct, frozen=True):
    """The engines that work for a model. encoder: "fastokens" or "tokenizers"; template:
    "minijinja", or "jinja2" where one of its templates needs it, "harmony" for gpt-oss's own text,
    "replica" where only that can render; why: by part, what keeps it from the fast path."""

    encoder: str = "tokenizers"
    template: str = "jinja2"
    why: dict[str, str] = {}

    def engines(self) -> tuple[tuple[str, str], ...]:
        """Return (part, engine) of each part."""
        return ("encoder", self.encoder), ("template", self.template)


class Refused(Exception):
    """An engine cannot do this tokenizer or template at all; the message says why."""


def versions() -> str:
    """Return the versions of all engines, which probe results depend on."""
    return " ".join(f"{name}={_version(name)}" for name in ENGINES)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def tried(call: Callable[_Asked, _Given], *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Given:
    """Return what the engine returns. Raise Refused where it fails; let UnicodeEncodeError pass."""
    try:
        return call(*args, **kwargs)
    except UnicodeEncodeError:
        raise
    except BaseException as error:
        # A panic in an engine's Rust code is a BaseException in Python.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise Refused(f"{type(error).__name__}: {error}"[:200]) from None

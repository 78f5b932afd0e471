"""minijinja as a renderer of chat templates.

Invariants:
- A template is taken only if it is made of constructs that both engines treat alike
  (`tokenlane.tokens.chat.constructs`); a value that they might print differently goes to the
  reference.
"""

from collections.abc import Callable
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenlane.tokens.chat import constructs
from tokenlane.tokens.chat.nulls import ANYWHERE, Nulls
from tokenlane.tokens.engines import Refused, tried

_INT64: Final = 1 << 63


class FastTemplate:
    """One chat template. Safe to share between threads."""

    def __init__(self, source: str, reference: ImmutableSandboxedEnvironment) -> None:
        """reference: the environment whose filters, tests and functions count. Raise Refused."""
        tree = reference.parse(source)
        nulls = Nulls(tree)
        problem = constructs.refusal(source, tree) or nulls.problem
        if problem:
            raise Refused(f"not known to be alike: {problem}")
        self._null_keys = nulls.keys
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
        tried(self._engine.add_template, "chat", source)

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str | None:
        """Return the prompt's text; None where the reference has to be asked."""
        # Of variables only `tools` and `documents` are null, which `Nulls` leaves to the probe.
        given = [messages, *(value for value in variables.values() if value is not None)]
        if not _plain(given, controls=not self._strips, null_keys=self._null_keys):
            return None
        try:
            text = tried(self._engine.render_template, "chat", messages=messages, **variables)
        except (Refused, UnicodeEncodeError):
            return None
        # Raised for invalid Unicode, too, which the reference passes on to be refused.
        return None if "\ufffd" in text else text


def _never(_: str) -> bool:
    return False


def _careful(function: Callable[..., Any], *, within: bool) -> Callable[..., Any]:
    """Give up on a null, and on one within the value: what is undefined arrives as one."""

    def careful(value: Any, *args: Any, **kwargs: Any) -> Any:
        held: Any = ()
        if within and isinstance(value, dict | list | tuple):
            held = value.values() if isinstance(value, dict) else value
        if value is None or None in held:
            raise TemplateError("null or undefined")
        return function(value, *args, **kwargs)

    return careful


def _plain(values: list[Any], *, controls: bool, null_keys: frozenset[str]) -> bool:
    """Return whether all of JSON values are of kinds that both engines print and compare alike: no
    floats, no long integers, no null under `null_keys`; controls: separators like U+001C are alike,
    too."""
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
            held = value.values()
            waiting.extend(held)
            if None in held and any(value.get(key, key) is None for key in null_keys):
                return False
            if not controls:
                waiting.extend(value)
        elif kind is list:
            waiting.extend(value)
        elif kind is int:
            if not -_INT64 <= value < _INT64:
                return False
        elif value is None:
            if ANYWHERE in null_keys:
                return False
        elif kind is not bool:
            return False
    return True

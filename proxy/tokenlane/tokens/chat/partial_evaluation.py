"""Partial evaluation of a chat template: Jinja2 runs it with the messages' texts unknown.

What a template says depends mostly on roles and options; of most texts it asks little or nothing.
So it is run once with a hole instead of each text, and the output is the rendering of every
conversation of that shape: text with holes, and what was asked of the texts on the way
(`tokenlane.tokens.chat.residual`).

Invariants:
- Everything but holes is Jinja2's own: scopes, loops, macros, namespaces, values that are known.
- A closed world where holes may go: functions, methods, filters and tests that are not known to
  fail at a hole, or to know what it is, are refused. Then the engines render the template.
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing

from tokenlane.tokens.chat.constructs import DICT_NAMES, METHODS
from tokenlane.tokens.chat.conversation import Message
from tokenlane.tokens.chat.holes import Asked, Hole, Length, Text, joined, shown
from tokenlane.tokens.chat.json_holes import Json, json
from tokenlane.tokens.chat.loop_checkpoints import (
    WALK,
    WalkBackLoop,
    WalkGivenLoop,
    WalkLoop,
    loop,
    number_loops,
    walk,
)
from tokenlane.tokens.chat.residual import Residual, Unknown
from tokenlane.tokens.chat.runs import Backwards, EarlierRun, FromEnd, Messages, Run
from tokenlane.tokens.chat.template_json import to_json

# These fail at a hole somewhere in a value, or are refused for one that is the value.
_FILTERS: Final = frozenset("dictsort first indent int items last list max min reverse".split())
# These ask a value for its truth, or for what other filters and tests say of it.
_FILTERS_OF_ALL: Final = frozenset("d default map reject rejectattr select selectattr".split())
_FILTERS_BY_METHOD: Final = {
    "lower": "lower",
    "replace": "replace",
    "trim": "strip",
    "upper": "upper",
}
_TESTS: Final = frozenset(
    "!= < <= == > >= divisibleby eq equalto even ge gt in le lt ne odd".split()
)


_PLAIN_OBJECTS: Final = (LoopContext, WalkGivenLoop, WalkLoop, Namespace)


class _Generator(CodeGenerator):
    """As Jinja2's, but what is printed stays a hole."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - a class of Jinja2
        """Write `~`."""
        self.write("environment.joined((")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.shown(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")


class HoleEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2 where some values are holes."""

    code_generator_class = _Generator
    concat = staticmethod(joined)  # type: ignore[assignment]  # of what macros and blocks print
    joined = staticmethod(joined)
    shown = staticmethod(shown)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or an item. Raise Unknown for a hole's."""
        # What most are, in a tenth of the time.
        kind = type(obj)
        if kind is dict and attribute not in DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in _PLAIN_OBJECTS and attribute[0] != "_":
            found = getattr(obj, attribute, missing)
            return self.undefined(obj=obj, name=attribute) if found is missing else found
        if isinstance(obj, Json):
            return self.getattr(obj.opened(), attribute)
        if isinstance(obj, Hole):
            return obj.method(attribute)
        if kind is WalkBackLoop:
            return obj.part(attribute)
        if kind is Messages or kind is Backwards:
            raise Unknown("a part of all messages")
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item or an attribute. Raise Unknown for a hole's."""
        if isinstance(argument, FromEnd):
            argument = argument.looked_at()
        if isinstance(obj, Json):
            obj = obj.opened()
        if isinstance(obj, Hole) or isinstance(argument, Hole):
            raise Unknown("a part of what is not known")
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what is known to fail at holes, or to know them. Raise Unknown for all else."""
        own = obj is self.globals["namespace"] or obj is self.globals["range"]
        if not (own or isinstance(obj, Macro) or _is_method(obj)):
            raise Unknown("a call")
        return super().call(context, obj, *args, **kwargs)


class PartialEvaluation:
    """A template, to be run with holes."""

    def __init__(self, source: str, environment: HoleEnvironment) -> None:
        """environment: as the template's own is set up; what it knows is restricted here."""
        environment.filters.update(_filters(environment.filters))
        environment.tests.update(_tests(environment.tests))
        environment.filters[WALK] = walk
        tree = environment.parse(source)
        number_loops(tree)
        code = environment.compile(tree)
        template = Template.from_code(environment, code, environment.make_globals(None))
        self._root = template.root_render_func
        self._root.__globals__["LoopContext"] = loop  # as the template's code calls it
        self._template = template

    def residual(
        self,
        messages: Callable[[int], Message],
        count: int,
        variables: dict[str, Any],
        asked: Asked,
        known: EarlierRun | None,
    ) -> Residual:
        """Return what the template makes of so many messages and these variables. asked: whose
        texts are in them. known: an earlier run, for a beginning of the messages. Raise Unknown."""
        run = Run(count, variables, asked, known)
        given = {**variables, "messages": Messages(messages, count, run)}
        try:
            for value in self._root(self._template.new_context(given)):
                run.shown.append(value)
            parts = run.parts()
        except Unknown:
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise anything; rendering it says better
            raise Unknown(type(error).__name__) from None
        if known is not None and run.kept:
            return known.residual.grown(parts, asked.guards, run.checkpoints, run.kept)
        # Repeated strings are kept once.
        once = {part: part for part in parts}
        return Residual(tuple([once[part] for part in parts]), asked.guards, run.checkpoints)


def _is_method(obj: Any) -> bool:
    owner = getattr(obj.func if isinstance(obj, partial) else obj, "__self__", None)
    if isinstance(owner, str | dict | list):
        return obj.__name__ in METHODS
    return isinstance(owner, Text | Extension)


def _filters(known: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return filters by name. known: Jinja2's."""
    own: dict[str, Callable[..., Any]] = dict.fromkeys(("count", "length"), _length)
    own |= {"join": _join, "string": shown, "tojson": _tojson}
    own |= {name: _method(method) for name, method in _FILTERS_BY_METHOD.items()}
    passed = {name: known[name] for name in _FILTERS_OF_ALL}
    others = {name: _without_holes(known[name]) for name in _FILTERS}
    return dict.fromkeys(known, _refused) | passed | others | own


def _tests(known: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return tests by name. known: Jinja2's."""
    passed = {name: known[name] for name in _TESTS}
    others = {name: _knowing_holes(name, known[name]) for name in Text.tests}
    return dict.fromkeys(known, _refused) | passed | others | {"sameas": _is_same}


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise Unknown("a filter or a test")


def _without_holes(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **words: Any) -> Any:
        opened = [one.opened() if isinstance(one, Json) else one for one in args]
        if any(isinstance(one, Hole) for one in opened):
            raise Unknown(f"the filter {function.__name__}")
        return function(*opened, **words)

    return called


def _knowing_holes(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    def asked(value: Any) -> Any:
        return value.tests[name] if isinstance(value, Hole) else test(value)

    return asked


def _is_same(value: Any, other: Any) -> bool:
    if not isinstance(other, bool | None):
        raise Unknown("whether two are the same")
    return value is other


def _join(values: Any, between: str = "") -> str | Text:
    return joined(
        [part for at, one in enumerate(values) for part in ((between, one) if at else (one,))]
    )


def _length(value: Any) -> int | Length | FromEnd:
    if isinstance(value, Messages | Backwards):
        return value.length
    return Length(value) if isinstance(value, Text) else len(value)


def _method(name: str) -> Callable[..., Any]:
    def called(value: Any, *words: Any) -> Any:
        given = shown(value)
        method = given.method(name) if isinstance(given, Text) else getattr(given, name)
        return method(*words)

    return called


def _tojson(value: Any, *args: Any, **words: Any) -> str | Text:
    if args or words not in ({}, {"ensure_ascii": False}):
        return to_json(value, *args, **words)
    return json(value)

"""Partial evaluation of a chat template: run with the messages' texts unknown.

What a template says depends mostly on roles and options; of most texts it asks little or nothing.
So it is run once with a hole instead of each text, and the output is the rendering of every
conversation of that shape: text with holes, and what was asked of the texts on the way
(`tokenlane.tokens.chat.residual`).

Invariants:
- A closed world: whatever is not known to behave as in Jinja2 raises Unknown, and the engines
  render the template. Names, attributes, tests and filters of plain values are Jinja2's own.
- What a template asks of a text is answered by the text at hand, and becomes a guard
  (`tokenlane.tokens.chat.holes`).
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from jinja2 import Environment, nodes
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from tokenlane.tokens.chat.constructs import METHODS
from tokenlane.tokens.chat.holes import Hole, Json, Text, Texts, joined, whole
from tokenlane.tokens.chat.macros import Macro
from tokenlane.tokens.chat.residual import Residual, Unknown

_FUNCTIONS = frozenset(("namespace", "range"))
_FILTERS = frozenset(
    "count d default dictsort first items join last length list lower reverse string tojson trim "
    "upper".split()
)
_TESTS = frozenset(Text.TESTS) | frozenset("eq equalto even ne odd".split())
_BINARY: dict[type[nodes.BinExpr], Callable[[Any, Any], Any]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mul: operator.mul,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: operator.mod,
}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
# A name's value, by name: one for a template, one for each turn of a loop.
_Frame = dict[str, Any]


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Loop:
    """`loop` in a loop's turn."""

    def __init__(self, items: list[Any], at: int, undefined: Undefined) -> None:
        self.length = len(items)
        self.index0, self.index = at, at + 1
        self.revindex0, self.revindex = self.length - at - 1, self.length - at
        self.first, self.last = at == 0, self.revindex0 == 0
        self.previtem = undefined if self.first else items[at - 1]
        self.nextitem = undefined if self.last else items[at + 1]


def residual(
    tree: nodes.Template, environment: Environment, variables: dict[str, Any], texts: Sequence[str]
) -> Residual:
    """Return the template's residual. variables: what it is rendered with, texts as `Text`. texts:
    those at hand, by number. Raise Unknown."""
    asked = Texts(texts)
    run = _Run(environment, asked, partial(Macro, tree=tree, variables=variables))
    try:
        run.block(tree.body, dict(variables))
    except Unknown:
        raise
    except Exception as error:  # noqa: BLE001 - a template can raise anything; rendering it says better
        raise Unknown(type(error).__name__) from None
    parts = Text(*run.shown).parts
    # Repeated guards are kept once.
    shown = {part: part for part in parts}
    return Residual(tuple([shown[part] for part in parts]), asked.guards)


class _Run:
    """One evaluation. shown: what it printed so far."""

    def __init__(self, environment: Environment, texts: Texts, macro: Callable[..., Macro]) -> None:
        self._environment = environment
        self._texts = texts
        self._macro = macro
        self.shown: list[str | int] = []

    # Statements

    def block(self, body: list[nodes.Node], frame: _Frame) -> None:
        for node in body:
            self._statement(node, frame)

    def _statement(self, node: nodes.Node, frame: _Frame) -> None:
        match node:
            case nodes.Output():
                for shown in node.nodes:
                    self._show(shown, frame)
            case nodes.If():
                branches = [(node.test, node.body), *[(one.test, one.body) for one in node.elif_]]
                for test, body in branches:
                    if self._texts.truth(self._value(test, frame)):
                        self.block(body, frame)
                        return
                self.block(node.else_, frame)
            case nodes.For(recursive=False):
                self._loop(node, frame)
            case nodes.Assign():
                self._assign(node.target, self._value(node.node, frame), frame)
            case nodes.AssignBlock(target=target, filter=None, body=body):
                self._assign(target, self._printed(body, dict(frame)), frame)
            case nodes.Macro(name=name):
                frame[name] = self._macro(node, frame)
            case nodes.Break():
                raise _Break
            case nodes.Continue():
                raise _Continue
            case _:
                raise Unknown(type(node).__name__)

    def _show(self, node: nodes.Node, frame: _Frame) -> None:
        if isinstance(node, nodes.TemplateData):
            self.shown.append(node.data)
            return
        value = self._value(node, frame)
        self.shown.extend(value.parts if isinstance(value, Text) else (str(value),))

    def _loop(self, node: nodes.For, frame: _Frame) -> None:
        # Jinja2 tests an item when its turn comes: what the turns before it set would count.
        if node.test is not None and node.find(nodes.NSRef) is not None:
            raise Unknown("a test that a turn may change")
        items = [
            item
            for item in self._value(node.iter, frame)
            if node.test is None
            or self._texts.truth(self._value(node.test, self._bound(node.target, item, frame)))
        ]
        undefined = self._environment.undefined()
        for at, item in enumerate(items):
            inner = self._bound(node.target, item, frame)
            inner["loop"] = _Loop(items, at, undefined)
            try:
                self.block(node.body, inner)
            except _Continue:
                continue
            except _Break:
                break
        if not items:
            self.block(node.else_, dict(frame))

    def _bound(self, target: nodes.Node, item: Any, frame: _Frame) -> _Frame:
        inner = dict(frame)
        self._assign(target, item, inner)
        return inner

    def _assign(self, target: nodes.Node, value: Any, frame: _Frame) -> None:
        if isinstance(value, Iterator):
            raise Unknown("an iterator as a value")  # who walks through it first empties it
        match target:
            case nodes.Name(name=name):
                frame[name] = value
            case nodes.NSRef(name=name, attr=attr) if isinstance(frame.get(name), Namespace):
                frame[name][attr] = value
            case nodes.Tuple(items=targets):
                for one, part in zip(targets, value, strict=True):
                    self._assign(one, part, frame)
            case _:
                raise Unknown("an assignment")

    # Expressions

    def _value(self, node: nodes.Node, frame: _Frame) -> Any:
        match node:
            case nodes.Const(value=value):
                return value
            case nodes.Name(name=name):
                return self._named(name, frame)
            case nodes.Getattr() | nodes.Getitem():
                return self._part(node, frame)
            case nodes.Call():
                return self._call(node, frame)
            case nodes.Filter():
                return self._filter(node, frame)
            case nodes.Test():
                return self._test(node, frame)
            case nodes.Compare():
                return self._compare(node, frame)
            case nodes.Concat(nodes=parts):
                return joined([self._value(part, frame) for part in parts])
            case nodes.And() | nodes.Or():
                left = self._value(node.left, frame)
                ends = self._texts.truth(left) is isinstance(node, nodes.Or)
                return left if ends else self._value(node.right, frame)
            case nodes.Not():
                return not self._texts.truth(self._value(node.node, frame))
            case nodes.Neg():
                return -self._value(node.node, frame)
            case nodes.CondExpr():
                if self._texts.truth(self._value(node.test, frame)):
                    return self._value(node.expr1, frame)
                missing = self._environment.undefined()
                return missing if node.expr2 is None else self._value(node.expr2, frame)
            case nodes.List(items=items):
                return [self._value(item, frame) for item in items]
            case nodes.Tuple(items=items):
                return tuple([self._value(item, frame) for item in items])
            case nodes.Dict(items=pairs):
                return {self._value(one.key, frame): self._value(one.value, frame) for one in pairs}
            case nodes.BinExpr() if type(node) in _BINARY:
                left, right = self._value(node.left, frame), self._value(node.right, frame)
                if isinstance(node, nodes.Add) and (
                    isinstance(left, Text) or isinstance(right, Text)
                ):
                    if not isinstance(left, Text | str) or not isinstance(right, Text | str):
                        raise Unknown("a sum")
                    return joined([left, right])
                return _BINARY[type(node)](left, right)
        raise Unknown(type(node).__name__)

    def _named(self, name: str, frame: _Frame) -> Any:
        if name in frame:
            if isinstance(frame[name], Macro):
                raise Unknown("a macro as a value")
            return frame[name]
        if name == "self" or name in self._environment.globals:
            raise Unknown("a function as a value")
        return self._environment.undefined(name=name)

    def _part(self, node: nodes.Getattr | nodes.Getitem, frame: _Frame) -> Any:
        """Return an attribute, an item or a slice."""
        of = self._value(node.node, frame)
        if isinstance(of, Hole):
            raise Unknown("a part of what is not known")
        if isinstance(of, _Loop) and isinstance(node, nodes.Getattr):
            return getattr(of, node.attr)
        if isinstance(node, nodes.Getattr):
            found = self._environment.getattr(of, node.attr)
        elif isinstance(node.arg, nodes.Slice):
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            return of[slice(*[None if end is None else self._value(end, frame) for end in ends])]
        else:
            key = self._value(node.arg, frame)
            if isinstance(key, Hole):
                raise Unknown("a key that is not known")
            found = self._environment.getitem(of, key)
        if callable(found) and not isinstance(found, Undefined):
            raise Unknown("a method as a value")
        return found

    def _call(self, node: nodes.Call, frame: _Frame) -> Any:
        args, words = self._arguments(node, frame)
        match node.node:
            case nodes.Name(name=name) if isinstance(frame.get(name), Macro):
                if any(isinstance(one, Iterator) for one in (*args, *words.values())):
                    raise Unknown("an iterator as a value")
                missing = self._environment.undefined()
                return self._printed(frame[name].body, frame[name].called(args, words, missing))
            case nodes.Name(name=name) if name in _FUNCTIONS and name not in frame:
                function: Any = self._environment.globals[name]
                return function(*args, **words)
            case nodes.Getattr(attr=name) if name in METHODS and not words:
                of = self._value(node.node.node, frame)
                if isinstance(of, Text):
                    return self._texts.ask(of, name, args)
                if isinstance(of, str | dict | list):
                    return getattr(of, name)(*args)
        raise Unknown("a call")

    def _printed(self, body: list[nodes.Node], frame: _Frame) -> str | Text:
        """Return what a block prints."""
        outer, self.shown = self.shown, []
        try:
            self.block(body, frame)
            return whole(self.shown)
        finally:
            self.shown = outer

    def _arguments(
        self, node: nodes.Call | nodes.Filter | nodes.Test, frame: _Frame
    ) -> tuple[list[Any], dict[str, Any]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise Unknown("arguments of unknown number")
        args = [self._value(one, frame) for one in node.args]
        return args, {str(one.key): self._value(one.value, frame) for one in node.kwargs}

    def _filter(self, node: nodes.Filter, frame: _Frame) -> Any:
        if node.node is None or node.name not in _FILTERS:
            raise Unknown(f"the filter {node.name}")
        value = self._value(node.node, frame)
        args, words = self._arguments(node, frame)
        if node.name == "tojson" and not args and not words:
            return self._texts.json(value)
        if isinstance(value, Text):
            if words:
                raise Unknown("a filter's words")
            if node.name == "trim":
                return self._texts.ask(value, "strip", args)
            if node.name == "string":
                return value
        if isinstance(value, Json):
            raise Unknown("a filter of what is not known")
        return self._environment.call_filter(node.name, value, args, words)

    def _test(self, node: nodes.Test, frame: _Frame) -> Any:
        value = self._value(node.node, frame)
        args, words = self._arguments(node, frame)
        if isinstance(value, Hole):
            if node.name not in value.TESTS or args:
                raise Unknown(f"the test {node.name}")
            return value.TESTS[node.name]
        if node.name not in _TESTS:
            raise Unknown(f"the test {node.name}")
        return self._environment.call_test(node.name, value, args, words)

    def _compare(self, node: nodes.Compare, frame: _Frame) -> Any:
        left, result = self._value(node.expr, frame), True
        for operand in node.ops:
            right = self._value(operand.expr, frame)
            result = self._compared(operand.op, left, right)
            if not result:
                break
            left = right
        return result

    def _compared(self, op: str, left: Any, right: Any) -> Any:
        if isinstance(right, Text) and isinstance(left, str):
            if op in ("in", "notin"):
                return self._texts.ask(right, "__contains__", [left]) is (op == "in")
            left, right = right, left
        if isinstance(left, Text) and isinstance(right, str) and op in ("eq", "ne"):
            return self._texts.ask(left, "__eq__", [right]) is (op == "eq")
        return _COMPARED[op](left, right)

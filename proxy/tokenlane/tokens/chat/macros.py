"""Macros of a chat template, as its partial evaluation calls them.

Invariants:
- Only macros at the top of a template, of constants as defaults, whose arguments all have names.
- A macro sees the names that were set before it. In Jinja2 it sees what they stand for when it is
  called: so each is set once at most, and none of them comes with the request.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from jinja2 import nodes

from tokenlane.tokens.chat.residual import Unknown

# Names of what a call gives a macro beside its arguments.
_OTHERS: Final = frozenset(("caller", "kwargs", "varargs"))


class Macro:
    """body: its statements."""

    def __init__(
        self,
        node: nodes.Macro,
        frame: dict[str, Any],
        tree: nodes.Template,
        variables: dict[str, Any],
    ) -> None:
        """frame: the names before it. tree: the template it is in; variables: what that is
        rendered with. Raise Unknown."""
        if not any(node is one for one in tree.body):
            raise Unknown("a macro within a block")
        self.body = node.body
        self._params = [param.name for param in node.args]
        self._given = dict.fromkeys(self._params)
        names = {name.name for name in node.find_all(nodes.Name)}
        if names & _OTHERS:
            raise Unknown("a macro that takes more than it names")
        if sum([one.name == node.name for one in tree.find_all(nodes.Macro)]) > 1:
            raise Unknown("two macros of one name")
        for param, default in zip(reversed(self._params), reversed(node.defaults), strict=False):
            if not isinstance(default, nodes.Const):
                raise Unknown("a default that is no constant")
            self._given[param] = default.value
        self._defaulted = self._params[len(self._params) - len(node.defaults) :]
        self._frame = frame | {node.name: self}
        own = {id(one) for one, _ in _set(node)}
        elsewhere = [name for one, name in _set(tree) if id(one) not in own]
        for name in names - self._given.keys():
            times = elsewhere.count(name)
            if times > 1 or (times and (name in variables or name not in self._frame)):
                raise Unknown("a name that a macro may see change")

    def called(self, args: list[Any], words: dict[str, Any], undefined: Any) -> dict[str, Any]:
        """Return the names of one call. undefined: for arguments that are missing. Raise
        Unknown."""
        by_place = dict(zip(self._params, args, strict=False))
        if len(args) > len(self._params) or not words.keys() <= self._given.keys() - by_place:
            raise Unknown("a call")
        missing = {name: undefined for name in self._params if name not in self._defaulted}
        return self._frame | self._given | missing | by_place | words


def _set(within: nodes.Node) -> Iterator[tuple[nodes.Node, str]]:
    """Yield what sets names, and each of them."""
    for one in chain(within.find_all(nodes.Assign), within.find_all(nodes.AssignBlock)):
        assert isinstance(one, nodes.Assign | nodes.AssignBlock)
        for name in (one.target, *one.target.find_all(nodes.Name)):
            if isinstance(name, nodes.Name):
                yield one, name.name

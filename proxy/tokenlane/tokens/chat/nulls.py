"""Where a template loops over, joins, reverses or slices what may be null.

Invariants:
- There the fast engine takes a null, or for slices what is undefined, for something empty, in
  silence; Jinja2 raises. So a value that may be one is told by where it comes from.
- What the analysis does not follow may come from anywhere.
- `tools` and `documents` are null in most requests: the probe finds out whether a template minds.
"""

from jinja2 import nodes

# Instead of a key: any value of the request, the template's own null, nothing at all.
ANYWHERE, OWN, UNSET = "\0anywhere", "\0own", "\0unset"


class Nulls:
    """keys: of objects of the request, under which a null makes a difference. problem: a construct
    where it always may, "" if there is none."""

    def __init__(self, tree: nodes.Template) -> None:
        self._values = _bound(tree)
        self.problem = ""
        found = set[str]()
        for node in tree.find_all((nodes.For, nodes.Filter, nodes.Getitem)):
            match node:
                case nodes.For(iter=value):
                    found |= self._origins(value, set())
                case nodes.Filter(name="join" | "list" | "reverse"):
                    for part in node.iter_child_nodes():
                        found |= self._origins(part, set())
                case nodes.Getitem(node=value, arg=nodes.Slice()):
                    if self._origins(value, set()):
                        self.problem = "a slice of what may be undefined or null"
        if OWN in found:
            self.problem = "a null that is looped over"
        self.keys = frozenset(found - {UNSET})

    def _origins(self, node: nodes.Node, seen: set[str]) -> set[str]:
        """Return the keys under which the value may be null; seen: names already followed."""
        match node:
            case nodes.Const(value=None):
                return {OWN}
            case nodes.Name(name="tools" | "documents"):
                return {UNSET}
            case nodes.Name(name=name):
                return self._named(name, seen) if name in self._values else _outside(name)
            case nodes.Getattr(node=nodes.Name(name="loop")):
                return {ANYWHERE}
            case (
                nodes.Getattr(node=held, attr=key)
                | nodes.Getitem(node=held, arg=nodes.Const(value=str(key)))
            ):
                if isinstance(held, nodes.Name) and f"{held.name}.{key}" in self._values:
                    return self._named(f"{held.name}.{key}", seen)
                return {key} | self._named(f".{key}", seen) | self._named(f".{ANYWHERE}", seen)
            case nodes.Getitem(arg=nodes.Slice()):
                return set()
            case nodes.Getitem(node=nodes.Call(node=nodes.Getattr(attr="split"))):
                return {UNSET}
            case nodes.Getitem() | nodes.Filter(name="first" | "last"):
                return {ANYWHERE}
            case nodes.Call(node=nodes.Getattr(node=held, attr="get"), args=[key, *other]):
                found = self._origins(nodes.Getitem(held, key, "load"), seen)
                return found.union(*(self._origins(one, seen) for one in other or [_NULL]))
            case nodes.CondExpr(expr1=one, expr2=two):
                return self._origins(one, seen) | self._origins(two or _NOTHING, seen)
            case nodes.Or(right=one):
                return self._origins(one, seen)
            case nodes.And(left=one, right=two):
                return self._origins(one, seen) | self._origins(two, seen)
            case nodes.Filter(name="default" | "d", args=[one, nodes.Const(value=True)]):
                return self._origins(one, seen)
            case nodes.Filter(name="default" | "d" | "safe"):
                parts = node.iter_child_nodes()
                return set[str]().union(*(self._origins(one, seen) for one in parts))
            case nodes.Keyword(value=one):
                return self._origins(one, seen)
        return set()

    def _named(self, name: str, seen: set[str]) -> set[str]:
        if name in seen:
            return set()
        seen.add(name)
        return set[str]().union(*(self._origins(one, seen) for one in self._values.get(name, ())))


_NULL, _NOTHING = nodes.Const(None), nodes.Name(UNSET, "load")


def _outside(name: str) -> set[str]:
    return set() if name == "messages" else {UNSET}


def _bound(tree: nodes.Template) -> dict[str, list[nodes.Node]]:
    """Return what names may hold; of namespaces as "name.attribute", of literals as ".key"."""
    held: dict[str, list[nodes.Node]] = {}
    for pair in tree.find_all(nodes.Pair):
        key = pair.key.value if isinstance(pair.key, nodes.Const) else ANYWHERE
        held.setdefault(f".{key}", []).append(pair.value)
    for node in tree.find_all((nodes.Assign, nodes.AssignBlock, nodes.For, nodes.Macro)):
        match node:
            case nodes.Assign(target=nodes.Name(name=name), node=value):
                held.setdefault(name, []).append(value)
                if isinstance(value, nodes.Call):  # of a namespace
                    for word in value.kwargs:
                        held.setdefault(f"{name}.{word.key}", []).append(word.value)
            case nodes.Assign(target=nodes.NSRef(name=name, attr=attr), node=value):
                held.setdefault(f"{name}.{attr}", []).append(value)
            case nodes.AssignBlock(target=nodes.Name(name=name)):
                held.setdefault(name, []).append(nodes.Const(""))
            case nodes.Assign(target=target) | nodes.For(target=target):
                part = nodes.Getitem(target, target, "load")  # some item, of what it is not said
                for one in (target, *target.find_all(nodes.Name)):
                    if isinstance(one, nodes.Name):
                        held.setdefault(one.name, []).append(part)
            case nodes.Macro():
                for name, value in _arguments(tree, node):
                    held.setdefault(name, []).append(value)
    return held


def _arguments(tree: nodes.Template, macro: nodes.Macro) -> list[tuple[str, nodes.Node]]:
    """Return the parameters of a macro with what its calls give them."""
    names = [one.name for one in macro.args]
    given: list[tuple[str, nodes.Node]] = []
    given += zip(reversed(names), reversed(macro.defaults), strict=False)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            words = {word.key: word.value for word in call.kwargs}
            for at, name in enumerate(names):
                value = call.args[at] if at < len(call.args) else words.get(name)
                given.append((name, value or _NOTHING))
    return given

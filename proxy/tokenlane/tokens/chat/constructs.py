"""What of Jinja the fast template engine does exactly as Jinja2 does it.

Invariants:
- What is not known to be alike is refused: a probe sees the values it tries, never all of them.
- Where the fast engine raises although Jinja2 would not, nothing is lost: the template is rendered
  again, by Jinja2. Refused is what it would do in another way, in silence.
- Alike holds for plain values only: JSON without floats, integers of 64 bits.

Known differences, and so refused here: it compares values of different types (`none < 1`), finds
methods where Jinja2 looks for keys (`"items" in x`, `x.pop`), lets methods change what they are
called on, has other ideas of lines (`splitlines`, `indent`) and of a word (`title`), follows
another version of Unicode (`s.upper()`), and knows functions that Jinja2 does not (`now`). It
chooses a loop's items before the first one's turn, shows namespaces as objects, does not know a
macro's other arguments where it takes a default, and counts a slice's steps from its other end.
"""

import re
from collections.abc import Iterator

from jinja2 import nodes

FILTERS = frozenset(
    "count d default first items join last length list lower map reject rejectattr replace "
    "reverse safe select selectattr string tojson trim upper".split()
)
TESTS = frozenset(
    "!= == boolean defined eq equalto even false integer iterable mapping ne none number odd "
    "sequence string true undefined".split()
)
METHODS = frozenset(
    "count endswith find get items keys lstrip replace rstrip split startswith strip values".split()
)
FUNCTIONS = frozenset(("namespace", "raise_exception", "range", "strftime_now"))
# Known to only one of the engines, or different in each.
OTHER_NAMES = frozenset(
    "caller cycler debug dict joiner kwargs lipsum now randrange self varargs".split()
)
_RAW = re.compile(r"\{%[-+]?\s*raw\b")
# Blocks that only run their content.
STATEMENTS = (
    nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.AssignBlock,
    nodes.Macro, nodes.Break, nodes.Continue,
)  # fmt: skip
DICT_NAMES = frozenset(dir(dict))
# Jinja2 walks through their results once, and takes an empty one for true.
ITERATORS = frozenset("items map reject rejectattr reverse select selectattr".split())
WALKERS = ITERATORS | {"first", "join", "list"}
# `x["items"]` finds the method in both engines where there is no such key.
DICT_READERS = frozenset(("get", "items", "keys", "values"))
NUMBERS = (nodes.Add, nodes.Sub, nodes.Mul, nodes.FloorDiv, nodes.Mod, nodes.Neg)


def refusal(source: str, tree: nodes.Template) -> str:
    """Return the first construct that is not known to be alike, "" if there is none."""
    # Jinja2 makes the first a line feed, within strings too, and takes the others for whitespace.
    if not frozenset("\r\x1c\x1d\x1e\x1f").isdisjoint(source):
        return "a control character"
    if _RAW.search(source):  # Jinja2 keeps the line feed behind it
        return "the block raw"
    return next(_refusals(tree), "")


def strips(tree: nodes.Template) -> bool:
    """Return whether whitespace is what the engine takes for it: the two differ in U+001C to
    U+001F."""
    return any(
        isinstance(call.node, nodes.Getattr)
        and call.node.attr in ("strip", "lstrip", "rstrip", "split")
        and not call.args
        for call in tree.find_all(nodes.Call)
    )


def _refusals(tree: nodes.Template) -> Iterator[str]:
    macros = {macro.name for macro in tree.find_all(nodes.Macro)}
    for found in tree.find_all(nodes.Stmt):
        if not isinstance(found, STATEMENTS):
            yield f"the block {type(found).__name__}"
        if isinstance(found, nodes.Output) and any(
            isinstance(shown, nodes.List | nodes.Tuple | nodes.Dict) for shown in found.nodes
        ):
            yield "a literal shown"
    yield from _scope_refusals(tree, macros)
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    numbers = _numbers(tree)
    for node in tree.find_all(nodes.Expr):
        problem = _problem(node, called, macros, numbers)
        if problem:
            yield problem


def _scope_refusals(tree: nodes.Template, macros: set[str]) -> Iterator[str]:
    spaces, made = set[str](), set[int]()
    for assign in tree.find_all(nodes.Assign):
        match assign:
            case nodes.Assign(
                target=nodes.Name(name=space),
                node=nodes.Call(node=nodes.Name(name="namespace") as maker, args=[]),
            ):
                spaces.add(space)
                made.add(id(maker))
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    made |= {id(read.node) for read in tree.find_all(nodes.Getattr) if id(read) not in called}
    made |= {id(read.node) for read in tree.find_all(nodes.Getitem)}
    # By another name it could be shown, or change a loop's filter.
    for name in tree.find_all(nodes.Name):
        if name.name in {*spaces, "namespace"} and name.ctx == "load" and id(name) not in made:
            yield "a namespace as a value"
    walked = {id(loop.iter) for loop in tree.find_all(nodes.For)}
    walked |= {id(one.node) for one in tree.find_all(nodes.Filter) if one.name in WALKERS}
    for one in tree.find_all(nodes.Filter):
        if one.name in ITERATORS and id(one) not in walked:
            yield "an iterator as a value"
    for macro in tree.find_all(nodes.Macro):
        if any(_names(default) for default in macro.defaults):
            yield "a default that names another value"
    for loop in tree.find_all(nodes.For):
        # Jinja2 filters item by item, so what the body sets counts for the items that follow.
        if loop.test is not None and _names(loop.test) & (spaces | macros):
            yield "a loop's filter that its body may change"


def _names(node: nodes.Node) -> set[str]:
    return {one.name for one in (node, *node.find_all(nodes.Name)) if isinstance(one, nodes.Name)}


def _problem(node: nodes.Node, called: set[int], macros: set[str], numbers: set[str]) -> str:
    match node:
        case nodes.Const(value=float()):
            return "a float"
        case nodes.Name(name=name) if name in OTHER_NAMES:
            return f"the name {name}"
        case nodes.Filter(name=name):
            return "" if _filter_alike(node) else f"the filter {name}"
        case nodes.Test(name="sameas", args=[nodes.Const(value=bool() | None)]):
            return ""
        case nodes.Test(name=name) if name not in TESTS:
            return f"the test {name}"
        case nodes.Getattr(attr=name) if id(node) in called:
            return "" if name in METHODS else f"the method {name}"
        case nodes.Getattr(attr=name) if name in DICT_NAMES or name.startswith("_"):
            return f"the attribute {name}"
        case nodes.Slice(start=start, stop=stop, step=step):
            return "a slice" if step is not None and (start or stop) is not None else ""
        case nodes.Getitem(arg=nodes.Const(value=str(name))):
            other = DICT_NAMES - DICT_READERS
            return f"the key {name}" if name in other or name.startswith("_") else ""
        case nodes.Call():
            return _call_problem(node, macros)
        case nodes.Compare():
            return "" if _compares_alike(node, numbers) else "a comparison"
        case nodes.Dict() | nodes.List() | nodes.Tuple():
            # What is undefined inside becomes a null, which `tojson` sees one level down.
            deep = any(
                any(inner.find_all((nodes.Name, nodes.Getattr)))
                for inner in node.find_all((nodes.Dict, nodes.List, nodes.Tuple))
            )
            return "a literal within a literal" if deep else ""
    return ""


def _filter_alike(node: nodes.Filter) -> bool:
    if node.name == "list":  # only of what cannot be null: one engine turns null into an empty list
        return isinstance(node.node, nodes.Filter | nodes.Call)
    if node.name in ("map", "select", "reject", "selectattr", "rejectattr"):
        # The filter or test that the filter applies.
        names = [one.value for one in node.args if isinstance(one, nodes.Const)]
        at = 0 if node.name in ("map", "select", "reject") else 1
        known = FILTERS - {"join", "list", "reverse"} if node.name == "map" else TESTS
        return len(names) == len(node.args) and (len(names) <= at or names[at] in known)
    return node.name in FILTERS


def _call_problem(node: nodes.Call, macros: set[str]) -> str:
    if node.dyn_args or node.dyn_kwargs:
        return "a call"
    match node.node:
        case nodes.Name(name=name):
            return "" if name in FUNCTIONS or name in macros else f"the function {name}"
        case nodes.Getattr(attr="split"):
            by = node.args[0] if node.args else nodes.Const(" ")
            known = isinstance(by, nodes.Const) and isinstance(by.value, str) and by.value
            return "" if known else "the method split"
        case nodes.Getattr():
            return ""
    return "a call"


def _compares_alike(node: nodes.Compare, numbers: set[str]) -> bool:
    left = node.expr
    for operand in node.ops:
        right = operand.expr
        if operand.op in ("in", "notin"):
            literal = isinstance(right, nodes.List | nodes.Tuple)
            word = isinstance(left, nodes.Const) and isinstance(left.value, str)
            if not literal and not (word and left.as_const() not in DICT_NAMES):
                return False
        elif operand.op not in ("eq", "ne") and not (
            _is_number(left, numbers) and _is_number(right, numbers)
        ):
            return False
        left = right
    return True


def _numbers(tree: nodes.Template) -> set[str]:
    """Return names, and attributes of namespaces, that never hold anything but a number."""
    given: dict[str, list[nodes.Node]] = {}
    for assign in tree.find_all(nodes.Assign):
        match assign.target, assign.node:
            case nodes.Name(name=name), nodes.Call(node=nodes.Name(name="namespace"), kwargs=words):
                given.setdefault(name, []).append(assign.node)
                for word in words:
                    given.setdefault(f"{name}.{word.key}", []).append(word.value)
            case nodes.Name(name=name), value:
                given.setdefault(name, []).append(value)
            case nodes.NSRef(name=name, attr=attr), value:
                given.setdefault(f"{name}.{attr}", []).append(value)
    # Names that are bound in another way as well.
    bound = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "param"}
    targets = [loop.target for loop in tree.find_all(nodes.For)]
    targets += [block.target for block in tree.find_all(nodes.AssignBlock)]
    for target in targets:
        names = [target, *target.find_all(nodes.Name)]
        bound |= {one.name for one in names if isinstance(one, nodes.Name)}
    numbers, before = set(given) - bound, -1
    while len(numbers) != before:
        before = len(numbers)
        numbers = {
            name for name in numbers if all(_is_number(value, numbers) for value in given[name])
        }
    return numbers


def _is_number(node: nodes.Node, numbers: set[str]) -> bool:
    match node:
        case nodes.Const(value=int()) | nodes.Filter(name="length" | "count"):
            return True
        case nodes.Name(name=name):
            return name in numbers
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr):
            return attr in ("index", "index0", "revindex", "revindex0", "length", "depth", "depth0")
        case nodes.Getattr(node=nodes.Name(name=name), attr=attr):
            return f"{name}.{attr}" in numbers
        case nodes.Call(node=nodes.Getattr(attr="find" | "count")):
            return True
        case nodes.BinExpr() | nodes.Neg() if isinstance(node, NUMBERS):
            return all(_is_number(one, numbers) for one in node.iter_child_nodes())
    return False

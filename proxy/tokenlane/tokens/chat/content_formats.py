"""What a chat template expects, read from its syntax tree as vLLM 0.32 reads it.

Invariants:
- "openai" means the template loops over a message's content and gets a list of parts; "string"
  means it gets text. vLLM decides this without running the template, and so must we: a better
  analysis that decides otherwise would be wrong.
- Scopes are ignored on purpose: a name that once held the messages holds them everywhere.
"""

from collections.abc import Iterator

from jinja2 import nodes

from tokenlane.tokens.chat.conversation import ContentFormat


class _Unreadable(Exception):
    """The analysis met a shape it has no answer for (a loop over tuples, say)."""


def content_format(tree: nodes.Template) -> ContentFormat:
    """Return the format of message content that this template expects."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unreadable:
        return "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _message_names(tree)
    bound = _content_parameters(tree, messages)
    in_macros = {
        id(loop) for macro in tree.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)
    }
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        hit = any(_reads(over, name, "content") for name in messages)
        if not hit and isinstance(over, nodes.Name):
            hit = over.name in bound.get(id(loop), ()) or (
                id(loop) not in in_macros and over.name == "content"
            )
        if hit:
            _target(loop.target)
            return True
    return False


def _message_names(tree: nodes.Template) -> list[str]:
    """Return the loop variables that stand for one message."""
    lists = list(_aliases(tree, "messages"))
    return [
        _target(loop.target)
        for loop in tree.find_all(nodes.For)
        if any(_reads(loop.iter, name) for name in lists)
    ]


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """Yield `name`, and every name assigned from it or from another alias."""
    yield name
    waiting, seen = [name], {name}
    while waiting:
        source = waiting.pop(0)
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, source):
                target = _target(assign.target)
                yield target
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)


def _content_parameters(tree: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """Return, for each loop inside a macro, the macro's parameters that are called with message
    content."""
    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        bound: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            given = list(zip(names, call.args, strict=False))
            given += [(word.key, word.value) for word in call.kwargs if word.key in names]
            bound |= {
                name
                for name, expression in given
                if any(_reads(expression, message, "content") for message in messages)
            }
        if bound:
            found |= {id(loop): bound for loop in macro.find_all(nodes.For)}
    return found


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether `node` is the variable (or its `key`), seen through filters, tests and
    slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return _reads_name(node, name)
    if isinstance(node, nodes.Getitem):
        same = isinstance(node.arg, nodes.Const) and node.arg.value == key
    elif isinstance(node, nodes.Getattr):
        same = node.attr == key
    else:
        return False
    return same and _reads_name(node.node, name)


def _reads_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _Unreadable
    return node.name

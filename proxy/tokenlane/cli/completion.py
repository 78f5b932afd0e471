"""Completion scripts for shells, made from the parser by shtab. Pure.

Invariants:
- A script is static and starts no interpreter while the user types, except to list a running
  gateway's replicas.
"""

import argparse
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import shtab

from tokenlane.config.options import OPTIONS
from tokenlane.routing.policies import POLICIES

_FILES = {"FILE", "FILE.png", "MODEL=DIR", "TRACE"}
# shtab's zsh script registers itself where it is eval'ed, and not where it is sourced.
_SOURCED = """\
if [[ $zsh_eval_context[-1] == file ]]; then
  compdef _shtab_tokenlane -N tokenlane
  return
fi"""

# Lines of `tokenlane replicas` begin with a replica's id.
_REPLICAS = "tokenlane replicas 2>/dev/null | cut -d' ' -f1"
_COMPLETE_REPLICAS = {
    "bash": "_tokenlane_replicas",
    "zsh": "_tokenlane_replicas",
    "fish": f"({_REPLICAS})",
}
_PREAMBLES = {
    "bash": f'_tokenlane_replicas() {{ compgen -W "$({_REPLICAS})" -- "$1"; }}',
    "zsh": f'_tokenlane_replicas() {{ compadd -- ${{(f)"$({_REPLICAS})"}}; }}\n{_SOURCED}',
}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its verbs."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to ask
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for verb in action.choices.values():
                yield from _actions(verb)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for `bash`, `zsh` or `fish`. The parser is for this use only: it learns
    what completes the values of its flags."""
    for action in _actions(parser):
        option = OPTIONS.get(action.dest)
        if action.metavar in _FILES:
            vars(action)["complete"] = shtab.FILE
        elif action.metavar == "REPLICA":
            vars(action)["complete"] = _COMPLETE_REPLICAS
        elif option is not None and get_origin(option.type) is Literal:
            action.choices = get_args(option.type)
        elif option is not None and option.path == "routing.policy":
            action.choices = tuple(POLICIES)
        elif option is not None and option.type is bool:
            action.choices = ("true", "false")
    return shtab.complete(parser, shell, preamble=_PREAMBLES.get(shell, ""))

"""Completion scripts for shells, made from the parser. Pure.

Invariants:
- A script is static: it starts no interpreter while somebody types.
"""

import argparse
from collections.abc import Iterator

# Flags whose value is a file or a folder.
_FILES = {"--config", "--tokenizer"}
Verb = tuple[str, str, list[tuple[str, str, tuple[str, ...]]]]


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 - argparse has no public way to ask


def _short(text: str | None) -> str:
    """The first words of a help line, without what a shell would read as its own."""
    plain = (text or "").split(" (")[0].split(" [")[0]
    return "".join(sign for sign in plain if sign not in "'\"`$\\:[]").strip()


def _verbs(parser: argparse.ArgumentParser) -> Iterator[Verb]:
    """(name, help, flags); flags: (flag, help, choices)."""
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            helps = {one.dest: one.help for one in action._choices_actions}  # noqa: SLF001
            for name, verb in action.choices.items():
                flags = [
                    (flag, _short(one.help), tuple(one.choices or ()))
                    for one in _actions(verb)
                    if one.help != argparse.SUPPRESS
                    for flag in one.option_strings
                    if flag.startswith("--")
                ]
                yield name, _short(helps.get(name)), flags


def _bash(verbs: list[Verb]) -> str:
    cases = "\n".join(
        f"    {name}) words='{' '.join(flag for flag, _, _ in flags)}' ;;"
        for name, _, flags in verbs
    )
    return f"""\
# bash: eval "$(tokenlane completion bash)"
_tokenlane() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words
  case $before in
    {"|".join(sorted(_FILES))}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current")); return ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{" ".join(name for name, _, _ in verbs)} --help --version'
  else case ${{COMP_WORDS[1]}} in
{cases}
  esac fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _tokenlane tokenlane"""


def _zsh(verbs: list[Verb]) -> str:
    names = "\n".join(f"    '{name}:{text}'" for name, text, _ in verbs)
    cases = []
    for name, _, flags in verbs:
        rows = [
            f"'{flag}[{text}]'" + (":file:_files" if flag in _FILES else "")
            for flag, text, _ in flags
        ]
        if name == "completion":
            rows.append("'1:shell:(bash zsh fish)'")
        cases.append(f"    {name}) _arguments {' '.join(rows)} ;;")
    joined = "\n".join(cases)
    return f"""\
#compdef tokenlane
# zsh: source <(tokenlane completion zsh)
_tokenlane() {{
  local -a verbs=(
{names}
  )
  if (( CURRENT == 2 )); then _describe verb verbs; return; fi
  local verb=$words[2]
  shift words; (( CURRENT-- ))
  case $verb in
{joined}
  esac
}}
compdef _tokenlane tokenlane"""


def _fish(verbs: list[Verb]) -> str:
    lines = [
        "# fish: tokenlane completion fish | source",
        "complete -c tokenlane -f",
    ]
    for name, text, flags in verbs:
        lines.append(f"complete -c tokenlane -n __fish_use_subcommand -a {name} -d '{text}'")
        seen = f"complete -c tokenlane -n '__fish_seen_subcommand_from {name}'"
        for flag, about, _ in flags:
            files = " -r -F" if flag in _FILES else ""
            lines.append(f"{seen} -l {flag.removeprefix('--')}{files} -d '{about}'")
        if name == "completion":
            lines.append(f"{seen} -a 'bash zsh fish'")
    return "\n".join(lines)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for `bash`, `zsh` or `fish`; its first line says how to load it."""
    verbs = list(_verbs(parser))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](verbs)

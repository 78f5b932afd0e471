"""The command line: the table of verbs, the parser made from it, exit codes.

Invariants:
- What the operator got wrong is one sentence on stderr and exit code 2, never a traceback.
- A flag overrides a variable, that the file, the file the defaults; `print-config` shows which.
- Flags of settings come from tokenlane.config.flags, those of a verb from its module; none are
  defined here.
- Importing this module is cheap: a verb imports what it needs when it runs.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tokenlane import __version__
from tokenlane.cli.output import complain, say_lines
from tokenlane.cli.verbs import change, checking, replay, serving, status
from tokenlane.cli.verbs.explain import explain, explain_flags
from tokenlane.cli.verbs.simulate import simulate, simulate_flags
from tokenlane.config.flags import HelpAction, gateway_flags
from tokenlane.errors import ConfigError


class Verb(NamedTuple):
    """about: one line of help. flags: adds its own to its parser. run: the exit code."""

    name: str
    about: str
    flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _completion_flags(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """\
to load it:
  bash: eval "$(tokenlane completion bash)"
  zsh:  eval "$(tokenlane completion zsh)"
  fish: tokenlane completion fish | source"""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _completion(args: argparse.Namespace) -> int:
    from tokenlane.cli.completion import script  # noqa: PLC0415 - as verbs do

    say_lines(script(args.shell, parser()))
    return 0


# In the order of the help.
VERBS = (
    Verb("serve", "serve in front of the replicas given", gateway_flags, serving.serve),
    Verb("demo", "serve in front of a simulated fleet of its own",
        serving.demo_flags, serving.demo),
    Verb("simulate", "run simulated vLLM replicas alone", simulate_flags, simulate),
    Verb("explain", "show where a request would go and why, sending nothing",
        explain_flags, explain),
    Verb("replicas", "list, add, drain or remove a running gateway's replicas",
        change.replicas_flags, change.replicas),
    Verb("reload", "make a running gateway reload its settings",
        change.reload_flags, change.reload),
    Verb("replay", "replay a trace through the routing, in simulated time",
        replay.flags, replay.run),
    Verb("check-config", "check whether the settings would serve",
        checking.check_config_flags, checking.check_config),
    Verb("print-config", "print the settings in force, and where each is from",
        checking.print_config_flags, checking.print_config),
    Verb("healthcheck", "ask a running gateway whether it is ready",
        status.healthcheck_flags, status.healthcheck),
    Verb("doctor", "look for what would keep the gateway from serving well",
        gateway_flags, checking.doctor),
    Verb("top", "show the live numbers of a running gateway; q quits",
        status.top_flags, status.top),
    Verb("completion", "print a shell's completion script", _completion_flags, _completion),
)  # fmt: skip


_EPILOG = """\
to begin:
  tokenlane demo                                     no GPU and no model needed
  tokenlane serve --backend http://HOST:PORT ...     in front of your own vLLM servers
  tokenlane doctor --backend http://HOST:PORT ...    what would keep it from serving well

tokenlane VERB --help shows the flags that people use, --help=all every one."""


class _Parser(argparse.ArgumentParser):
    """Says what was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), names, 1)
            meant = f"did you mean {near[0]}? It is" if near else "it is"
            raise argparse.ArgumentError(
                action, f"there is no {value!r}; {meant} one of {', '.join(names)}"
            )


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs and flags."""
    made = _Parser(
        prog="tokenlane",
        description="An LLM gateway that routes prompts to vLLM replicas by their tokens.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"tokenlane {__version__}")
    parsers = made.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        own = parsers.add_parser(
            verb.name,
            help=verb.about,
            description=verb.about[0].upper() + verb.about[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # A setting that is added later must not change what a script means.
            allow_abbrev=False,
            add_help=False,
        )
        own.add_argument("-h", "--help", action=HelpAction)
        verb.flags(own)
        own.set_defaults(run=verb.run, flags=partial(_flags, own))
    return made


def _flags(verb: argparse.ArgumentParser) -> list[str]:
    """Return all flags of a verb."""
    return [flag for action in verb._actions for flag in action.option_strings]  # noqa: SLF001


def _parsed(whole: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments. An unknown flag ends the process and names the one that was probably
    meant."""
    if argv == [] or (argv is None and len(sys.argv) == 1):
        whole.print_help(sys.stderr)
        whole.exit(2)
    args, left = whole.parse_known_args(argv)
    for word in ("replica", "settings"):
        # argparse of older Pythons takes an optional argument for absent where a flag comes before
        # it.
        if len(left) == 1 and left[0][0:1] != "-" and getattr(args, word, "") is None:
            setattr(args, word, left.pop())
    if left:
        near = difflib.get_close_matches(left[0].partition("=")[0], args.flags(), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        whole.error(f"unrecognized arguments: {' '.join(left)}{meant}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 success, 1 failure, 2 wrong settings."""
    args = _parsed(parser(), argv)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return code

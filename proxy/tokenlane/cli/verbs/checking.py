"""`tokenlane check-config`, `print-config` and `doctor`: the settings, and what they would do.

Invariants:
- Every mistake is printed, each on a line of its own.
"""

import argparse
import json
import os
from pathlib import Path

from tokenlane.cli.output import complain, say, say_lines
from tokenlane.config.flags import gateway_flags, loaded, looked, misspelt_variables
from tokenlane.config.loading import LoadedSettings, printed, schema
from tokenlane.errors import ConfigError, ConfigProblems


def check_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: all settings, and whether to ask the replicas."""
    gateway_flags(parser)
    parser.add_argument("--probe", action="store_true", help="ask the replicas too")


def check_config(args: argparse.Namespace) -> int:
    """Return 1 where the settings would not serve, else 0."""
    for told in misspelt_variables():
        complain(told)
    from tokenlane.control.checks import check_loaded

    try:
        found = looked(args)
        check_loaded(found)
        _load_tokenizers(found)
    except ConfigError as error:
        for problem in error.problems:
            complain(problem)
        return 1
    settings = found.settings
    replicas, tokenizers = len(settings.backends), len(settings.tokens.folders)
    policy = settings.routing.policy
    say(f"ok: {replicas} replica(s), {tokenizers} tokenizer(s), policy {policy}")
    if args.probe:
        from tokenlane.cli.doctor import DoctorReport, check_names, check_replicas

        report = DoctorReport(say)
        check_names(report, settings, check_replicas(report, settings))
        return 1 if report.failed else 0
    return 0


def _load_tokenizers(found: LoadedSettings) -> None:
    """Raise ConfigProblems for folders that no worker could load."""
    from tokenlane.tokens.model_files import vocabulary_elsewhere
    from tokenlane.tokens.tokenizer import Tokenizer

    problems = []
    for model, folder in found.settings.tokens.folders.items():
        if vocabulary_elsewhere(Path(folder)) is not None:
            continue  # its replicas are asked
        try:
            Tokenizer.load(model, Path(folder), fast=False)
        except ConfigError as error:
            problems.append(found.placed(f"tokens.folders.{model}: {error}"))
    if problems:
        raise ConfigProblems(problems)


def print_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: all settings, or the file's schema."""
    gateway_flags(parser)
    parser.add_argument(
        "--schema", action="store_true", help="print the file's JSON Schema instead"
    )


def print_config(args: argparse.Namespace) -> int:
    """Print the settings in force, each with its origin."""
    say_lines(json.dumps(schema(), indent=2) if args.schema else printed(loaded(args)))
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Return 1 where something would keep the gateway from serving well, else 0."""
    from tokenlane.cli.doctor import examine

    return examine(loaded(args).settings, os.environ, say)

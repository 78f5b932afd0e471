"""The models' tokenizers: where each is from, found at the start, before any worker runs.

Invariants:
- What was given is used or the start fails. What was found is used if it loads; if not, the model
  is routed by text, and both are said.
- Looking and trying happens in a thread: probes and the admin port go on.
- Whoever waits may stop waiting: a client of the hub that runs is ended then.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from tokenlane.config.settings import Settings
from tokenlane.control import fleet_table
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.probes import session_of, tokenizes
from tokenlane.control.tokenizers import finder, hub
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import ReplicaState, adapter_bases
from tokenlane.tokens.model_files import vocabulary_elsewhere

log = logging.getLogger(__name__)


def given_sources(settings: Settings) -> dict[str, TokenizerSource]:
    """What the settings name, by model."""
    sources = {}
    for model, at in settings.tokens.folders.items():
        vocabulary = vocabulary_elsewhere(Path(at))
        sources[model] = (
            TokenizerSource(at, "given")
            if vocabulary is None
            else TokenizerSource(None, f"{at} has {vocabulary} and no tokenizer.json")
        )
    return sources


def _try(model: str, root: str | None) -> TokenizerSource:
    found = finder.find(model, root, os.environ)
    if found.folder is None:
        return found
    # The engine's library is no part of the control plane unless something has to be tried.
    from tokenlane.tokens.tokenizer import Tokenizer  # noqa: PLC0415

    try:
        Tokenizer.load(model, Path(found.folder), fast=False)
    except ConfigError as error:
        return TokenizerSource(None, str(error))
    return found


async def _source(settings: Settings, model: str, root: str | None) -> TokenizerSource:
    """On this machine, else from the hub: once, before anything is served."""
    source = await asyncio.to_thread(_try, model, root)
    if source.folder is not None or not settings.tokens.fetch:
        return source
    for name in finder.repositories(model, root):
        tell = partial(log.info, "fetching the tokenizer of %s from the hub: %s", model)
        why = await hub.fetch(name, settings.tokens.fetch_deadline_s, tell, os.environ)
        if not why:
            fetched = await asyncio.to_thread(_try, model, root)
            if fetched.folder is None:
                return fetched
            return TokenizerSource(fetched.folder, f"fetched from the hub as {name}")
        source = TokenizerSource(None, f"{source.how}; {why}")
    return source


async def ask(
    settings: Settings, sources: Mapping[str, TokenizerSource], replicas: Iterable[ReplicaState]
) -> dict[str, TokenizerSource]:
    """The sources, where there was none with a word on whether a replica that is up tokenizes."""
    if not settings.tokens.ask_replicas or all(source.folder for source in sources.values()):
        return dict(sources)
    up = [replica for replica in replicas if replica.up]
    found = dict(sources)
    async with session_of(settings) as session:
        for model, source in sources.items():
            url = next((one.url for one in up if model in one.models), None)
            if source.folder is None and url is not None:
                why = await tokenizes(session, url, model)
                said = f"{url}/tokenize: {why}" if why else f"{url}/tokenize answers"
                found[model] = TokenizerSource(None, f"{source.how}; {said}", asked=not why)
    return found


async def discover(
    settings: Settings, models: Iterable[str], roots: Mapping[str, str]
) -> dict[str, TokenizerSource]:
    """A source for each model given or served. roots: where replicas say that models are."""
    sources = given_sources(settings)
    for model in models:
        if model in sources:
            continue
        if settings.tokens.discover:
            sources[model] = await _source(settings, model, roots.get(model))
        else:
            sources[model] = TokenizerSource(None, "not looked for")
    return sources


async def resolve(
    settings: Settings, table: FleetTable, sources: dict[str, TokenizerSource]
) -> None:
    """Puts a source of each model that is given or served; those of adapters are their bases'."""
    adapters = adapter_bases(table.replicas)
    served = [one for one in fleet_table.models(table.replicas) if one not in adapters]
    found = await discover(settings, served, table.roots)
    sources.update(await ask(settings, found, table.replicas))


def with_folders(settings: Settings, sources: Mapping[str, TokenizerSource]) -> Settings:
    """The settings as workers get them: with every folder that there is."""
    folders = {model: one.folder for model, one in sources.items() if one.folder is not None}
    tokens = msgspec.structs.replace(settings.tokens, folders=folders)
    return msgspec.structs.replace(settings, tokens=tokens)

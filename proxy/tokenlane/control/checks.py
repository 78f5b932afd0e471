"""What is wrong with settings, as far as it can be known without a port or a tokenizer.

Invariants:
- What the operator got wrong is one sentence (ConfigError) with the setting in it.
- A start and a reload are held to the same.
- The control plane runs on aiohttp's parser in C or not at all: of the holes that aiohttp had, most
  were in the one in Python, which it falls back to where its extensions are missing or off.
"""

import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from aiohttp import http_parser

from tokenlane.config.keyring import admin_token, client_keys, replica_key
from tokenlane.config.secret import ADMIN_TOKEN_VARIABLE
from tokenlane.config.settings import Settings
from tokenlane.config.tls import server_context, tls_files, upstream_context
from tokenlane.control.discovery.sources import check as check_discovery
from tokenlane.control.fleet_table import FleetTable, base_url
from tokenlane.control.kv_events.publishers import configured
from tokenlane.errors import ConfigError
from tokenlane.http.cors import is_origin
from tokenlane.routing.policies import check_policy
from tokenlane.tokens.model_files import only_replicas, vocabulary_elsewhere

SLOT_LIMIT = 256
WORKER_LIMIT = 64


def check_settings(settings: Settings) -> FleetTable:
    """All that can be known without a port or a tokenizer. ConfigError with what is wrong."""
    check_parsers()
    check_discovery(settings.discovery)
    if not settings.backends and not settings.discovery.on:
        raise ConfigError("no replica to serve from; give at least one --backend http://HOST:PORT")
    if len(settings.backends) > SLOT_LIMIT:
        raise ConfigError(f"more than {SLOT_LIMIT} backends")
    if not 1 <= settings.server.workers <= WORKER_LIMIT:
        raise ConfigError(f"--workers must be between 1 and {WORKER_LIMIT}")
    check_policy(settings.routing.policy, "routing.policy")
    for model, folder in settings.tokens.folders.items():
        file = Path(folder) / "tokenizer.json"
        vocabulary = vocabulary_elsewhere(Path(folder))
        if vocabulary is not None:
            if not settings.tokens.ask_replicas:
                raise ConfigError(f"the tokenizer of {model}: {only_replicas(folder, vocabulary)}")
        elif not file.is_file() or not os.access(file, os.R_OK):
            raise ConfigError(
                f"the tokenizer of {model}: {file} cannot be read;"
                f" --tokenizer {model}=DIR names the folder that has it"
            )
    client_keys(settings.auth)
    if admin_token(settings.admin) is None and settings.admin.read_needs_token:
        raise ConfigError(
            "admin.read_needs_token is on, but there is no token: set admin.token_file or the"
            f" variable {ADMIN_TOKEN_VARIABLE}"
        )
    replica_key(settings.upstream)
    if tls_files(settings.server, settings.upstream):  # to read the system's CAs takes 40 ms
        server_context(settings.server)
        upstream_context(settings.upstream)
    check_networks(settings.server.trusted_peers)
    for origin in settings.server.cors_origins:
        if not is_origin(origin):
            raise ConfigError(
                f"server.cors_origins: {origin!r} must look like https://app.example, or be *"
            )
    table = FleetTable(settings.backends, settings.control)
    for backend, source in settings.kv_events.sources.items():
        configured(source)
        known = {replica.url for replica in table.replicas}
        if base_url(backend) not in known and not settings.discovery.on:
            raise ConfigError(f"kv_events.sources names {backend}, which is none of the backends")
    return table


def check_parsers() -> None:
    """ConfigError where aiohttp fell back."""
    in_python = (http_parser.HttpRequestParserPy, http_parser.HttpResponseParserPy)
    if http_parser.HttpRequestParser in in_python or http_parser.HttpResponseParser in in_python:
        raise ConfigError(
            "aiohttp runs without its C parser; unset AIOHTTP_NO_EXTENSIONS, or install a wheel"
        )


def check_networks(networks: Sequence[str]) -> None:
    """ConfigError where one is no network."""
    for network in networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ConfigError(
                f"server.trusted_peers: {network!r} must look like 10.0.0.0/8"
            ) from None

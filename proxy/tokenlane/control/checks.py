"""What is wrong with settings, as far as it can be known without loading a tokenizer.

Invariants:
- Each mistake is one sentence with the setting's path first, and all of them are found.
- A start, a reload and `check-config` are held to the same. A port that is taken is no mistake of
  the settings: the gateway that has it may be the one that asks.
- The control plane runs on aiohttp's parser in C or not at all: of the holes that aiohttp had, most
  were in the one in Python, which it falls back to where its extensions are missing or off.
"""

import ipaddress
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import http_parser

from tokenlane.config.keyring import admin_token, client_keys, replica_key, store_password
from tokenlane.config.loading import LoadedSettings
from tokenlane.config.secret import ADMIN_TOKEN_VARIABLE
from tokenlane.config.settings import Settings
from tokenlane.config.tls import server_context, tls_files, upstream_context
from tokenlane.control.discovery.sources import checks as discovery_checks
from tokenlane.control.fleet_table import base_url, host_of
from tokenlane.control.kv_events.publishers import configured
from tokenlane.control.peers.store_address import store_address
from tokenlane.control.peers.store_client import check_store_client
from tokenlane.errors import ConfigError, ConfigProblems
from tokenlane.http.cors import is_origin
from tokenlane.routing.policies import check_policy
from tokenlane.runtime import ports
from tokenlane.telemetry.log.sink import check_target
from tokenlane.telemetry.tracing.exporter import check_endpoint, check_extra
from tokenlane.tokens.model_files import only_replicas, vocabulary_elsewhere

SLOT_LIMIT = 256


def check_settings(settings: Settings) -> None:
    """Raise ConfigProblems with all that is wrong."""
    if found := list(problems(settings)):
        raise ConfigProblems(found)


def check_loaded(found: LoadedSettings) -> None:
    """Raise ConfigProblems with what is wrong with the settings as they were given, and with the
    rest of them as a start would find it."""
    later = map(found.placed, problems(found.settings, found.is_sound))
    if told := [*found.problems, *later]:
        raise ConfigProblems(told)


def problems(settings: Settings, is_sound: Callable[[str], bool] = lambda _: True) -> Iterator[str]:
    """Yield a sentence for each mistake, the setting's path first. is_sound: whether a setting has
    the value that was given; what reads another is not checked."""
    yield from _said(check_parsers)
    for check in (
        _of_ports, _of_replicas, _of_tokenizers, _of_keys, _of_certificates, _of_logs, _of_fleet,
    ):  # fmt: skip
        for problem in check(settings, is_sound):
            if is_sound(problem.partition(": ")[0]):
                yield problem


def _said(check: Callable[..., object], *given: Any, at: str = "") -> Iterator[str]:
    """Yield what a check raises. at: the setting it is about, where it does not say so itself."""
    try:
        check(*given)
    except ConfigError as error:
        for problem in error.problems:
            yield f"{at}: {problem}" if at else problem


def _of_ports(settings: Settings, is_sound: Callable[[str], bool]) -> Iterator[str]:
    server, admin = settings.server, settings.admin
    listening = True
    for at, host, port, options in (
        ("server", server.host, server.port, ports.DATA_OPTIONS),
        ("admin", admin.host, admin.port, ports.ADMIN_OPTIONS),
    ):
        told = list(_said(ports.check, host, 0, options, at=f"{at}.host"))
        told = told or list(_said(ports.check, host, port, options, at=f"{at}.port"))
        listening = listening and not told
        yield from told
    listening = listening and all(map(is_sound, ("server.port", "server.host", "admin.host")))
    if listening and ports.collide((server.host, server.port), (admin.host, admin.port)):
        yield "admin.port: is the data port too (server.port); choose another --admin-port"


def _of_replicas(settings: Settings, is_sound: Callable[[str], bool]) -> Iterator[str]:
    backends, discovery = settings.backends, settings.discovery
    if not backends and not discovery.on and is_sound("discovery"):
        yield "backends: no replica to serve from; give at least one --backend http://HOST:PORT"
    if len(backends) > SLOT_LIMIT:
        yield f"backends: more than {SLOT_LIMIT}"
    known: dict[str, str] = {}
    for place, backend in enumerate(backends):
        at = f"backends[{place}]"
        told = list(_said(base_url, backend, at=at))
        yield from told
        if not told and known.setdefault(host_of(backend), at) != at:
            yield f"{at}: {backend} is listed twice"
    for check in discovery_checks(discovery):
        yield from _said(check)
    yield from _said(check_policy, settings.routing.policy, "routing.policy")
    for place, peer in enumerate(settings.fleet.peers):
        yield from _said(base_url, peer, at=f"fleet.peers[{place}]")
    for backend, source in settings.kv_events.sources.items():
        at = f"kv_events.sources.{backend}"
        told = list(_said(configured, source, at=at)) + list(_said(base_url, backend, at=at))
        yield from told
        lacks = not told and host_of(backend) not in known and not discovery.on
        if lacks and is_sound("backends") and is_sound("discovery"):
            yield f"{at}: is none of the backends"


def _of_tokenizers(settings: Settings, is_sound: Callable[[str], bool]) -> Iterator[str]:
    for model, folder in settings.tokens.folders.items():
        at, file = f"tokens.folders.{model}", Path(folder) / "tokenizer.json"
        vocabulary = vocabulary_elsewhere(Path(folder))
        if vocabulary is not None:
            if not settings.tokens.ask_replicas and is_sound("tokens.ask_replicas"):
                yield f"{at}: {only_replicas(folder, vocabulary)}"
        elif not file.is_file() or not os.access(file, os.R_OK):
            yield f"{at}: {file} cannot be read; --tokenizer {model}=DIR names the folder with it"


def _of_keys(settings: Settings, is_sound: Callable[[str], bool]) -> Iterator[str]:
    if is_sound("auth"):
        yield from _said(client_keys, settings.auth)
    yield from _said(replica_key, settings.upstream)
    try:
        token = admin_token(settings.admin)
    except ConfigError as error:
        yield str(error)
        return
    if token is None and settings.admin.read_needs_token and is_sound("admin.token_file"):
        yield (
            "admin.read_needs_token: is on, but there is no token: set admin.token_file or the"
            f" variable {ADMIN_TOKEN_VARIABLE}"
        )


def _of_certificates(settings: Settings, is_sound: Callable[[str], bool]) -> Iterator[str]:
    server, upstream = settings.server, settings.upstream
    if tls_files(server, upstream):  # to read the system's CAs takes 40 ms
        if is_sound("server.tls_cert_file") and is_sound("server.tls_key_file"):
            yield from _said(server_context, server)
        if is_sound("upstream.tls_cert_file") and is_sound("upstream.tls_key_file"):
            yield from _said(upstream_context, upstream)
    for place, network in enumerate(server.trusted_peers):
        yield from _said(check_network, network, at=f"server.trusted_peers[{place}]")
    for place, origin in enumerate(server.cors_origins):
        if not is_origin(origin):
            yield (
                f"server.cors_origins[{place}]: {origin!r} must look like https://app.example,"
                " or be *"
            )


def _of_logs(settings: Settings, _: Callable[[str], bool]) -> Iterator[str]:
    if settings.log.access != "off":
        yield from _said(check_target, settings.log.access)
    if settings.tracing.endpoint:
        yield from _said(check_endpoint, settings.tracing.endpoint)
        yield from _said(check_extra)


def _of_fleet(settings: Settings, _: Callable[[str], bool]) -> Iterator[str]:
    if settings.fleet.store:
        yield from _said(store_address, settings.fleet.store)
        yield from _said(store_password, settings.fleet)
        yield from _said(check_store_client)


def check_parsers() -> None:
    """ConfigError where aiohttp fell back."""
    in_python = (http_parser.HttpRequestParserPy, http_parser.HttpResponseParserPy)
    if http_parser.HttpRequestParser in in_python or http_parser.HttpResponseParser in in_python:
        raise ConfigError(
            "aiohttp runs without its C parser; unset AIOHTTP_NO_EXTENSIONS, or install a wheel"
        )


def check_network(network: str) -> None:
    """Raise ConfigError where it is none."""
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError:
        raise ConfigError(f"{network!r} must look like 10.0.0.0/8") from None

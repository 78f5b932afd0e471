"""What a worker reads from files before it serves: the key for replicas, certificates, tokenizers;
and opens: its log and its traces.

Invariants:
- A mistake in any of it is one ConfigError, before the port is opened.
"""

import asyncio
import logging
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from tokenlane.channel.messages import Hello
from tokenlane.config.keyring import replica_key
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Key, Settings, TokenSettings
from tokenlane.config.tls import server_context, system_context, upstream_context
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens import encoder_threads
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Tokenizers = dict[str, Tokenizer]


class Resources(NamedTuple):
    """keys: of clients, None where all may come in. replica_key: shown to replicas. access,
    tracer: None where off."""

    keys: tuple[Key, ...] | None
    replica_key: Secret | None
    server_tls: ssl.SSLContext | None
    upstream_tls: ssl.SSLContext | None
    access: AccessLog | None
    tracer: Tracer | None

    @classmethod
    def of(cls, hello: Hello) -> Self:
        """Raise ConfigError."""
        settings = hello.settings
        return cls(
            hello.keys,
            replica_key(settings.upstream),
            server_context(settings.server),
            upstream_tls(settings),
            AccessLog(settings.log, hello.worker) if settings.log.access != "off" else None,
            Tracer(settings.tracing, hello.worker) if settings.tracing.endpoint else None,
        )

    def close(self) -> None:
        """Write what is left to be told."""
        for teller in (self.access, self.tracer):
            if teller is not None:
                teller.close()


def upstream_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for https:// replicas, where the settings name any: else the first one
    has it made, on the loop. Raise ConfigError."""
    upstream, found = settings.upstream, settings.discovery
    if upstream.tls_ca_file or upstream.tls_cert_file or upstream.tls_key_file:
        return upstream_context(upstream)
    named = *settings.backends, *found.dns, f"{found.kubernetes_scheme}:"
    return system_context() if any(url.startswith("https:") for url in named) else None


async def load_tokenizers(settings: TokenSettings) -> Tokenizers:
    """Load the tokenizer of every model with a folder, by the model's name, and prepare the loop's
    thread to encode with them. Raise ConfigError."""
    # Its thread ends with it, and so does what the encoder remembers for that.
    with ThreadPoolExecutor(1, "load") as loading:
        loop = asyncio.get_running_loop()
        tokenizers = await loop.run_in_executor(loading, _load, settings)
    for tokenizer in tokenizers.values():
        if tokenizer.encoder.keeps_words:
            encoder_threads.fill_table(partial(tokenizer.encode, add_special_tokens=False))
    return tokenizers


def _load(settings: TokenSettings) -> Tokenizers:
    tokenizers = {}
    for model, folder in settings.folders.items():
        tokenizers[model] = Tokenizer.load(model, Path(folder), fast=settings.fast_engines)
        for doubt in tokenizers[model].doubts:
            log.warning("tokenizer of %s: its ids may differ from vLLM's: %s", model, doubt)
        # The first encode builds tables, which no request should wait for.
        tokenizers[model].encode("warm up", add_special_tokens=True)
    return tokenizers

"""TLS on both sides: contexts made once, from files that the settings name.

Invariants:
- TLS 1.2 or newer, HTTP/1.1 by ALPN. A replica's certificate is always checked, its name too.
"""

import ssl
from functools import cache

from tokenlane.config.settings import ServerSettings, UpstreamSettings
from tokenlane.errors import ConfigError


def tls_files(server: ServerSettings, upstream: UpstreamSettings) -> tuple[str, ...]:
    """Return the files of certificates, keys and CAs that the settings name."""
    files = (
        server.tls_cert_file, server.tls_key_file,
        upstream.tls_ca_file, upstream.tls_cert_file, upstream.tls_key_file,
    )  # fmt: skip
    return tuple(file for file in files if file)


def server_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return the context of the data port; None without a certificate. Raise ConfigError."""
    if not settings.tls_cert_file:
        if settings.tls_key_file:
            raise ConfigError("server.tls_key_file: is set, but server.tls_cert_file is not")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, "server", settings.tls_cert_file, settings.tls_key_file)
    return _ours(context)


def renew(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Load the data port's certificate again, for new connections. Raise ConfigError and keep the
    old one where that fails."""
    server_context(settings)
    _load(context, "server", settings.tls_cert_file, settings.tls_key_file)


def upstream_context(settings: UpstreamSettings) -> ssl.SSLContext:
    """Return the context for https:// backends: the CAs to trust (else the system's), and the
    client certificate, if any. Raise ConfigError."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
    except OSError as error:
        raise ConfigError(
            f"upstream.tls_ca_file: {settings.tls_ca_file} cannot be used ({error})"
        ) from None
    if settings.tls_cert_file:
        _load(context, "upstream", settings.tls_cert_file, settings.tls_key_file)
    elif settings.tls_key_file:
        raise ConfigError("upstream.tls_key_file: is set, but upstream.tls_cert_file is not")
    return _ours(context)


@cache
def system_context() -> ssl.SSLContext:
    """Return the one context of all that is found on https:// where the settings name no file: each
    takes 40 ms and most of a megabyte to make."""
    return upstream_context(UpstreamSettings())


def _ours(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, side: str, cert_file: str, key_file: str) -> None:
    try:
        # No prompt for a passphrase, because no one could answer it.
        context.load_cert_chain(cert_file, key_file or None, password=lambda: b"")
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "unreadable"
        raise ConfigError(
            f"{side}.tls_cert_file: {cert_file} cannot be used with its key ({reason})"
        ) from None

"""Replace the settings of a worker that serves.

Invariants:
- Everything that can fail is built first, in a thread; then all of it is swapped in one turn of the
  loop. A failure to build changes nothing.
- Requests in flight keep the old settings: none is cut, none waits.
"""

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass

from tokenlane.admission.auth import Authenticator, dropped_fields
from tokenlane.channel.messages import Reload
from tokenlane.config.keyring import replica_key
from tokenlane.config.secret import Secret
from tokenlane.config.settings import LogSettings, Settings
from tokenlane.config.tls import renew, tls_files
from tokenlane.errors import ConfigError
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request import Gateway
from tokenlane.http.server import HttpServer
from tokenlane.runtime.file_times import Stamps, stamps
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.worker.gauges import Gauges
from tokenlane.worker.resources import Resources, upstream_tls

log = logging.getLogger(__name__)


def _sink(settings: LogSettings) -> tuple[object, ...]:
    """Return the settings whose change reopens the log."""
    kind = settings.access, settings.format, settings.prefix_block_tokens
    return *kind, settings.queue_limit_lines


@dataclass(eq=False)
class WorkerReload:
    """What a worker was started with, and the parts that a reload replaces. loaded: the current
    settings."""

    number: int
    settings: Settings
    resources: Resources
    _: KW_ONLY
    gateway: Gateway
    server: HttpServer
    recorder: Recorder
    gauges: Gauges

    def __post_init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._stamps = stamps(tls_files(self.settings.server, self.settings.upstream))

    async def apply(self, reload: Reload) -> str:
        """Apply new settings. Return "" or the sentence that says why they are refused."""
        async with self._one_at_a_time:
            try:
                made, seen = await asyncio.to_thread(self._make, reload)
                self._put(reload.settings, made)
            except (ConfigError, OSError, ValueError) as error:
                return str(error) or "unknown"
            before, self.resources, self._stamps = self.resources, made, seen
            if before.access is not None and before.access is not made.access:
                await asyncio.to_thread(before.access.close)
            return ""

    def _make(self, reload: Reload) -> tuple[Resources, Stamps]:
        """Build the new parts, in a thread. Raise ConfigError."""
        settings, now, was = reload.settings, self.resources, self.settings
        key: Secret | None = replica_key(settings.upstream)
        if now.replica_key is not None and now.replica_key.same(key):
            key = now.replica_key
        seen = stamps(tls_files(settings.server, settings.upstream))
        upstream, access = now.upstream_tls, now.access
        tls_of = settings.upstream.tls_ca_file, settings.upstream.tls_cert_file
        if seen != self._stamps or tls_of != (
            was.upstream.tls_ca_file, was.upstream.tls_cert_file,
        ):  # fmt: skip
            upstream = upstream_tls(settings)
            if now.server_tls is not None:
                renew(now.server_tls, settings.server)
        if _sink(settings.log) != _sink(was.log):
            off = settings.log.access == "off"
            access = None if off else AccessLog(settings.log, self.number)
        made = now._replace(keys=reload.keys, replica_key=key, upstream_tls=upstream, access=access)
        return made, seen

    def _put(self, settings: Settings, made: Resources) -> None:
        """Swap everything in one turn of the loop. Raise before anything has changed."""
        recorder = self.recorder
        authenticator = (
            Authenticator(made.keys, recorder.unauthorized) if made.keys is not None else None
        )
        self.gateway.configure(settings, authenticator, made.replica_key, made.upstream_tls)
        self.server.configure(settings.server, dropped_fields(made.keys, made.replica_key))
        recorder.configure(settings.prices, made.access, settings.log)
        if made.access is not self.resources.access:
            self.gauges.access.follow(made.access)
        self.settings = settings

"""`tokenlane doctor`: what would keep the gateway from serving well, and what to do about it.

Invariants:
- It changes nothing: ports are bound for a moment, replicas are asked what a probe asks.
- Every finding that is not fine ends in the next step.
"""

import asyncio
import platform
import resource
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tokenlane import __version__
from tokenlane.cli import admin_client
from tokenlane.cli.doctor_fleet import check_fleet
from tokenlane.cli.doctor_ids import check_ids
from tokenlane.config.options import unknown_variables
from tokenlane.config.settings import Settings
from tokenlane.control.checks import check_settings
from tokenlane.control.discovery.file import read as listed_in
from tokenlane.control.fleet_table import ADVICE, Probe, base_url
from tokenlane.control.front_end import FrontEnd
from tokenlane.control.probes import probe, session_of
from tokenlane.control.tokenizers import finder
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.control.tokenizers.resolution import ask, given_sources
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import ReplicaState
from tokenlane.gateway.model_names import ModelNames
from tokenlane.runtime import ports
from tokenlane.runtime.build_kind import build_kind
from tokenlane.runtime.cgroup import cpu_count
from tokenlane.tokens.tokenizer import Tokenizer

OPEN_FILES = 16_384
RUNNING_TIMEOUT_S = 2.0


class DoctorReport:
    """Lines as they are found. failed: something would keep the gateway from serving. replicas:
    those that are up."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.failed = False
        self.warned = False
        self.replicas: list[ReplicaState] = []

    def fine(self, text: str) -> None:
        """As it should be."""
        self._say(f"  ok    {text}")

    def warn(self, text: str) -> None:
        """It serves, but not as well as it could."""
        self.warned = True
        self._say(f"  warn  {text}")

    def fail(self, text: str) -> None:
        """It would not serve."""
        self.failed = True
        self._say(f"  FAIL  {text}")


def examine(settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Everything; the exit code is 1 if the gateway would not serve."""
    report = DoctorReport(say)
    say(f"tokenlane {__version__}, Python {platform.python_version()}, {platform.platform()}")
    check_build(report)
    check_machine(report, settings)
    check_variables(report, environ)
    try:
        check_settings(settings)
        report.fine("settings: every value is known and of its type")
    except ConfigError as error:
        for problem in error.problems:
            report.fail(f"settings: {problem}")
    check_ports(report, settings)
    roots = check_replicas(report, settings)
    check_front_ends(report, settings)
    check_names(report, settings, roots)
    check_fleet(settings.fleet, report.fine, report.warn)
    check_tokenizers(report, settings, roots, environ)
    if report.failed:
        say("The gateway would not serve; what begins with FAIL says why.")
    elif report.warned:
        say("The gateway would serve; what begins with warn could be better.")
    else:
        say("All is well: tokenlane serve with the same flags.")
    return 1 if report.failed else 0


def check_build(report: DoctorReport) -> None:
    """Whether the hot modules are compiled."""
    if build_kind() == "compiled":
        report.fine("build: compiled")
    else:
        report.warn(
            "build: plain Python, about twice the CPU of the compiled one for a request;"
            " a wheel, or pip install with a C compiler at hand, has that one"
        )


def check_machine(report: DoctorReport, settings: Settings) -> None:
    """Cores and file descriptors."""
    cores, workers = cpu_count(), settings.server.workers
    if workers > cores:
        report.warn(f"cores: {workers} workers share {cores}; --workers {cores} serves better")
    else:
        report.fine(f"cores: {cores}, for {workers} worker(s)")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        step = f"ulimit -n {OPEN_FILES}" if hard >= OPEN_FILES else "raise it (LimitNOFILE=)"
        report.warn(f"open files: at most {soft}, two for each request in flight; {step}")
    else:
        report.fine(f"open files: at most {soft}")


def check_variables(report: DoctorReport, environ: Mapping[str, str]) -> None:
    """Variables that look like settings and are none."""
    for name, meant in unknown_variables(environ).items():
        said = f"did you mean {meant}?" if meant else "tokenlane serve --help=all lists them"
        report.warn(f"environment: {name} means nothing; {said}")


def check_ports(report: DoctorReport, settings: Settings) -> None:
    """Whether both ports are free, or shared, or those of a gateway that runs with these
    settings."""
    server, admin = settings.server, settings.admin
    reserve = partial(ports.reserve, shared=server.share_port)
    for what, listen, host, port in (
        ("data", reserve, server.host, server.port),
        ("admin", ports.admin_listener, admin.host, admin.port),
    ):
        try:
            listen(host, port).close()
        except ports.TakenError as error:
            if who := _running(settings):
                report.fine(f"{what} port: {host}:{port} is served by a running gateway, {who}")
            else:
                report.fail(f"{what} port: {error}")
        except ConfigError as error:
            report.fail(f"{what} port: {error}")
        else:
            free = "free, or shared" if listen is reserve and server.share_port else "free"
            found = f"{host}:{port} is {free}" if port else f"one that is free on {host}"
            report.fine(f"{what} port: {found}")


def _running(settings: Settings) -> str:
    """Return which gateway answers on the admin port; else an empty text."""
    told = _status(settings)
    return f"tokenlane {told['version']}, process {told['pid']}" if told else ""


def _status(settings: Settings) -> dict[str, Any]:
    """Return what the gateway says that answers on the admin port, if its data port is that of the
    settings; else nothing."""
    admin = settings.admin
    try:
        told = admin_client.ask(
            admin_client.address(None, admin), "GET", "/status.json",
            timeout_s=RUNNING_TIMEOUT_S, headers=admin_client.shown_if_readable(admin),
        )  # fmt: skip
        serves = urlsplit(told["url"]).port == settings.server.port
        return told if serves else {}
    except (admin_client.Unreachable, admin_client.ErrorAnswer, ValueError, KeyError, TypeError):
        return {}


def check_front_ends(report: DoctorReport, settings: Settings) -> None:
    """Whether requests wait for the front ends of replicas, as a running gateway sees it."""
    for replica in _status(settings).get("replicas", []):
        if seen := replica.get("front_end"):
            front_end = msgspec.convert(seen, FrontEnd)
            if front_end.starved:
                report.warn(f"replica {replica['id']}: {front_end.why}")


async def _probed(urls: list[str], settings: Settings) -> list[Probe]:
    async with session_of(settings) as session:
        return await asyncio.gather(*(probe(session, url) for url in urls))


def check_replicas(report: DoctorReport, settings: Settings) -> dict[str, str | None]:
    """Ask every replica of `backends` and `discovery.file`. Return where the models are that they
    serve, None for adapters of others."""
    try:
        urls = [base_url(backend) for backend in settings.backends]
    except ConfigError:
        return {}  # said before
    if settings.discovery.file:
        try:
            listed = listed_in(Path(settings.discovery.file)) or []
        except ConfigError as error:
            report.warn(str(error))
        else:
            urls = list(dict.fromkeys([*urls, *listed]))
    roots: dict[str, str | None] = {}
    for url, found in zip(urls, asyncio.run(_probed(urls, settings)), strict=True):
        if not found.good:
            report.fail(f"replica {url}: {found.told(ADVICE)}")
            continue
        served = found.models or ()
        slot = len(report.replicas)
        report.replicas.append(ReplicaState(id=url, slot=slot, url=url, up=True, models=served))
        models = ", ".join(served) or "no model"
        report.fine(f"replica {url}: up, serves {models}")
        if found.models is None:
            report.warn(
                f"replica {url}: /v1/models cannot be read; every model name is let through"
            )
        if found.scrape is None:
            report.warn(
                f"replica {url}: /metrics cannot be read, so its cache's size is unknown;"
                " is vLLM started with --disable-log-stats?"
            )
        for model in found.models or ():
            adapter = model in found.adapters
            roots.setdefault(model, None if adapter else found.roots.get(model, ""))
    return roots


def check_names(report: DoctorReport, settings: Settings, served: Collection[str]) -> None:
    """Whether the models are served that names of the settings mean. served: the models."""
    wanted = {
        model: name
        for name, behind in ModelNames(settings.models).models().items()
        for model in behind
    } | {shadow.to: f"the shadow of {model}" for model, shadow in settings.models.shadows.items()}
    for model, name in wanted.items():
        if model in served:
            report.fine(f"models: {model}, that {name} means, is served")
        elif served:
            known = ", ".join(served)
            report.warn(f"models: no replica serves {model}, that {name} means; served: {known}")


def check_tokenizers(
    report: DoctorReport,
    settings: Settings,
    roots: Mapping[str, str | None],
    environ: Mapping[str, str],
) -> None:
    """Load every tokenizer that the gateway would use."""
    sources = given_sources(settings)
    for model, root in roots.items():
        if model in sources or root is None or not settings.tokens.discover:
            continue
        found = finder.find(model, root, environ)
        if found.folder is None and settings.tokens.fetch and finder.repositories(model, root):
            found = TokenizerSource(None, f"{found.how}; the start asks the hub")
        sources[model] = found
    missing = {model: source for model, source in sources.items() if source.folder is None}
    for model, source in asyncio.run(ask(settings, missing, report.replicas)).items():
        instead = "its replicas are asked" if source.asked else "routed by the text of its prompts"
        report.warn(
            f"tokenizer of {model}: {source.how}; {instead}"
            f" until --tokenizer {model}=DIR names its folder"
        )
    tokenizers: dict[str, Tokenizer] = {}
    for model, source in sources.items():
        if source.folder is None:
            continue
        try:
            loaded = tokenizers[model] = Tokenizer.load(
                model, Path(source.folder), fast=settings.tokens.fast_engines
            )
        except ConfigError as error:
            report.fail(str(error)) if source.how == "given" else report.warn(str(error))
            continue
        engines = " and ".join(engine for _, engine in loaded.fast.engines())
        report.fine(f"tokenizer of {model}: {source.folder} ({source.how}; {engines})")
        for doubt in loaded.doubts:
            report.warn(f"tokenizer of {model}: its ids may differ from vLLM's: {doubt}")
        if roots and model not in roots:
            report.warn(f"tokenizer of {model}: no replica serves this model; is the name right?")
    served = tuple(report.replicas)
    asyncio.run(check_ids(settings, served, tokenizers, report.fine, report.warn))

"""What every test shares: the event loop is the one the gateway runs on, and no verdict depends on
how busy the machine is."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# What probes of tokenizers find is kept from one run to the next, and never in a developer's cache.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"tokenlane-tests-{os.getuid()}")

settings.register_profile("tokenlane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokenlane")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop, uvloop: a second one would double the suite and prove nothing we ship."""
    return {"uvloop": uvloop.new_event_loop}

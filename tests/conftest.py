"""What every test shares: the event loop is the one the gateway runs on."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop, uvloop: a second one would double the suite and prove nothing we ship."""
    return {"uvloop": uvloop.new_event_loop}

"""What of settings that were read anew is put in force, and what needs a restart."""

from typing import Any

import msgspec
import pytest

from tokenlane.config.differences import changed
from tokenlane.config.options import OPTIONS, leaves
from tokenlane.config.settings import (
    AuthSettings,
    RoutingSettings,
    ServerSettings,
    Settings,
    Tenant,
    TokenSettings,
)

NOW = Settings(backends=("http://a:1",))


def test_nothing_is_different() -> None:
    assert changed(NOW, NOW).settings == NOW
    assert (changed(NOW, NOW).live, changed(NOW, NOW).restart) == ((), ())


def test_what_goes_together_alone_is_put_in_force_together() -> None:
    read = Settings(
        backends=NOW.backends, routing=RoutingSettings(alpha=0.6, idle_alpha=0.7, sibling_alpha=0.8)
    )
    found = changed(NOW, read)
    assert (found.settings, found.restart) == (read, ())


def test_what_needs_a_restart_stays_and_is_named() -> None:
    read = Settings(
        backends=("http://b:1",),
        server=ServerSettings(port=9000, idle_deadline_s=5.0),
        routing=RoutingSettings(policy="random", index_limit_blocks=7),
        tokens=TokenSettings(threads=4),
        auth=AuthSettings(tenants={"t": Tenant(priority="batch")}),
    )
    found = changed(NOW, read)
    assert found.settings == Settings(
        backends=("http://b:1",),
        server=ServerSettings(idle_deadline_s=5.0),
        routing=RoutingSettings(policy="random"),
        auth=AuthSettings(tenants={"t": Tenant(priority="batch")}),
    )
    assert found.live == (
        "backends", "server.idle_deadline_s", "auth.tenants", "routing.policy",
    )  # fmt: skip
    assert found.restart == ("server.port", "tokens.threads", "routing.index_limit_blocks")
    # Read again, the same still need a restart; put back, they do not.
    assert changed(found.settings, read).restart == found.restart
    assert changed(found.settings, read).live == ()


def _other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return type(value)


@pytest.mark.parametrize(
    "path", [path for path in OPTIONS if "alpha" not in path and "models." not in path]
)
def test_every_setting_is_either_put_in_force_or_named(path: str) -> None:
    other = _other(dict(leaves(NOW))[path])
    section, _, name = path.rpartition(".")
    read = (
        msgspec.structs.replace(
            NOW, **{section: msgspec.structs.replace(getattr(NOW, section), **{name: other})}
        )
        if section
        else msgspec.structs.replace(NOW, **{name: other})
    )
    found = changed(NOW, read)
    if OPTIONS[path].live:
        assert (found.live, found.restart, found.settings) == ((path,), (), read)
    else:
        assert (found.live, found.restart, found.settings) == ((), (path,), NOW)


def test_what_workers_are_built_on_needs_a_restart() -> None:
    for path in ("server.workers", "server.port", "tokens.folders", "stalls.beat_s", "admin.port"):
        assert not OPTIONS[path].live
    for path in ("backends", "auth.keys", "log.access", "routing.policy", "admin.token_file"):
        assert OPTIONS[path].live

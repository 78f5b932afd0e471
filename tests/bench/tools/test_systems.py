"""The proxies of others are measured at their work, not at their logs."""

import pytest

from bench.tools import systems


@pytest.mark.parametrize(("package", "quiet"), [("sglang_router", True), ("vllm_router", False)])
def test_only_the_router_that_logs_each_request_is_told_not_to(package: str, quiet: bool) -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    argv = systems.router_command(package, urls, 3, 4)
    assert ("--log-level warn" in " ".join(argv)) is quiet
    assert argv[-3:] == ["--worker-urls", *urls]

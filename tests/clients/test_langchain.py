"""LangChain's chat models against a gateway, unchanged: `make test-clients` installs them."""

from importlib import import_module
from typing import Any

import pytest

from tests.clients.scene import serving

pytestmark = pytest.mark.slow
COMMON: dict[str, Any] = {"api_key": "none", "model": "demo", "max_tokens": 5, "max_retries": 0}
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "chat": ("langchain_openai", "ChatOpenAI", {}, "/v1"),
    "responses": ("langchain_openai", "ChatOpenAI", {"use_responses_api": True}, "/v1"),
    "anthropic": ("langchain_anthropic", "ChatAnthropic", {}, ""),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")  # what LangChain's own imports warn of is theirs
async def test_invoke_and_stream(name: str) -> None:
    package, cls, options, path = MODELS[name]
    pytest.importorskip(package, reason="make test-clients installs it")
    async with serving(keeping=True) as (bench, _):
        url = f"http://127.0.0.1:{bench.port}{path}"
        model = getattr(import_module(package), cls)(base_url=url, **COMMON, **options)
        whole = await model.ainvoke("Say something about rivers.")
        assert whole.text
        assert whole.usage_metadata["output_tokens"] == 5
        pieces = [piece async for piece in model.astream("Say something about rivers.")]
        assert "".join(piece.text for piece in pieces) == whole.text
        assert len([piece for piece in pieces if piece.text]) == 5
        assert bench.outcomes() == {("200", "ok"): 2}

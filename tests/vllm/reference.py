"""Renders chat requests with vLLM's own code. Run by the interpreter that has vLLM, never imported.

Standard input: a JSON object per line. `{"folder": PATH}` loads a model folder and answers with
its tokenizer's class; a chat request answers `{"text": ...}` as vLLM 0.32 renders it for the
folder, or `{"error": ...}`; `{"encode": [texts], "special": bool}` answers `{"ids": [...]}`, and
`{"harmony": a chat request}` the ids as vLLM renders it for gpt-oss.
Starts in seconds where a server takes half a minute, and takes thousands of requests per second.
"""

import importlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any


class ModelConfig:
    """The fields that vLLM's renderer reads of its own ModelConfig."""

    tokenizer_revision = code_revision = revision = None
    multimodal_config = encoder_config = None
    trust_remote_code = enable_prompt_embeds = is_encoder_decoder = False

    def __init__(self, folder: str) -> None:
        self.model = self.tokenizer = folder
        model_type = json.loads((Path(folder) / "config.json").read_text())["model_type"]
        self.hf_config = types.SimpleNamespace(model_type=model_type)


def main() -> None:
    """Answers until standard input ends."""
    # By name: the interpreter that lints this has no vLLM.
    protocol: Any = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    renderers: Any = importlib.import_module("vllm.renderers")
    hf: Any = importlib.import_module("vllm.renderers.hf")
    try:
        chat_utils: Any = importlib.import_module("vllm.renderers.chat_utils")
    except ModuleNotFoundError:  # before 0.32
        chat_utils = importlib.import_module("vllm.entrypoints.chat_utils")
    tokenizers: Any = importlib.import_module("vllm.tokenizers")

    def harmony(body: dict[str, Any]) -> Any:
        # Versions before 0.32 have it elsewhere, and all else of them can be asked.
        online: Any = importlib.import_module("vllm.renderers.online_renderer")
        request = protocol.ChatCompletionRequest.model_validate(body)
        renderer = online.OnlineRenderer.__new__(online.OnlineRenderer)
        renderer.supports_browsing = renderer.supports_code_interpreter = False
        renderer.renderer = None
        with_tools = request.tools is not None
        _, [prompt] = renderer._make_request_with_harmony(request, with_tools)
        return prompt["prompt_token_ids"]

    logging.disable(logging.CRITICAL)
    # It tries again after two seconds what a folder cannot give it.
    files: Any = importlib.import_module("vllm.transformers_utils.repo_utils")
    files.time = types.SimpleNamespace(sleep=lambda _: None)
    config: Any = None
    tokenizer: Any = None

    def render(body: dict[str, Any]) -> Any:
        request = protocol.ChatCompletionRequest.model_validate(body)
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        params = request.build_chat_params(None, "auto").with_defaults(
            renderers.merge_kwargs(None, {"tools": tools, "tokenize": False})
        )
        content_format = hf.resolve_chat_template_content_format(
            chat_template=params.chat_template,
            tools=params.chat_template_kwargs.get("tools"),
            given_format="auto",
            tokenizer=tokenizer,
            model_config=config,
        )
        conversation, _, _ = chat_utils.parse_chat_messages(
            request.messages, config, content_format=content_format
        )
        return hf.safe_apply_chat_template(
            config, tokenizer, conversation, **params.get_apply_chat_template_kwargs()
        )

    for line in sys.stdin:
        body = json.loads(line)
        answer: dict[str, Any]
        try:
            if "folder" in body:
                config = ModelConfig(body["folder"])
                tokenizer = tokenizers.get_tokenizer(body["folder"])
                answer = {
                    "class": type(tokenizer).__mro__[1].__name__,
                    "specials": tokenizer.special_tokens_map,
                    "backend": tokenizer._tokenizer.to_str(),
                }
            elif "harmony" in body:
                answer = {"ids": harmony(body["harmony"])}
            elif "encode" in body:
                special = body["special"]
                answer = {
                    "ids": [
                        tokenizer(text, add_special_tokens=special)["input_ids"]
                        for text in body["encode"]
                    ]
                }
            else:
                answer = {"text": render(body)}
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises is an answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

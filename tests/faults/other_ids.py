"""A replica over real sockets whose tokenizer, template and signs of life can be changed, and that
knows which of the ids it was given are not those that it would have made."""

import asyncio
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.raw import Asked, Peer, Upstream, json_bytes, ok
from tokenlane.protocols.bodies import CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def changed(folder: Path, change: Change) -> Tokenizer:
    """The demo model's tokenizer with another tokenizer.json or tokenizer_config.json."""
    shutil.copytree(demo_folder(), folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    files = [folder / "tokenizer.json", folder / "tokenizer_config.json"]
    values = [json.loads(file.read_text()) for file in files]
    change(values[0], values[1])
    for file, value in zip(files, values, strict=True):
        file.write_text(json.dumps(value))
    return Tokenizer.load("demo", folder, fast=False)


def template(old: str, new: str) -> Change:
    """Another text in the chat template."""

    def change(_: dict[str, Any], config: dict[str, Any]) -> None:
        assert old in config["chat_template"]
        config["chat_template"] = config["chat_template"].replace(old, new)

    return change


def one_more_token(tokenizer: dict[str, Any], _: dict[str, Any]) -> None:
    """An added token that the gateway has not."""
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<|extra|>"})


def swapped(one: int, other: int) -> Change:
    """Two entries of the vocabulary have changed places."""

    def change(tokenizer: dict[str, Any], _: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        words = {number: word for word, number in vocabulary.items()}
        vocabulary[words[one]], vocabulary[words[other]] = other, one

    return change


class Replica(Upstream):
    """tokenizer: that it speaks. forwarded: prompts that it got as ids; wrong: of these, with other
    ids than it makes of the text (which requests repeat in the field `user`). tokenizes: it has a
    /tokenize. excludes: it leaves out tools that may not be called."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(self._serve)
        self.tokenizer = tokenizer
        self.tokenizes = True
        self.excludes = False
        self.started_s = 0
        self.version = "0.32.0"
        self.created_s = 0
        self.root = "demo"
        self.max_model_tokens = 4096
        self.forwarded = self.wrong = self.answered = 0

    @property
    def questions(self) -> int:
        """How often it was asked for ids, or for text."""
        return sum(b"tokenize" in asked.line for asked in self.asked)

    async def leave(self) -> None:
        """Nothing listens any more, and all connections end."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for peer in self.peers:
            peer.close()

    def come(self) -> None:
        """A process listens on the same port."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self._listener.listen(1024)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def _serve(self, peer: Peer) -> None:
        while True:
            try:
                asked = await peer.asked()
                answer = self._answer(asked)
                path = asked.line.split()[1]
                missing = answer is None or (b"tokenize" in path and not self.tokenizes)
                text = f"process_start_time_seconds {self.started_s}\n".encode()
                whole = ok(text if path == b"/metrics" else json_bytes(answer))
                await peer.send(whole.replace(b"200 OK", b"404 Not Found") if missing else whole)
            except (EOFError, OSError, ValueError):  # or it has left
                return

    def _answer(self, asked: Asked) -> Any:
        path = asked.line.split()[1].decode()
        if path in ("/health", "/version"):
            return {"version": self.version}
        if path == "/metrics":
            return ""
        if path == "/v1/models":
            card = {"id": "demo", "root": self.root, "max_model_len": self.max_model_tokens}
            return {"data": [card | ({"created": self.created_s} if self.created_s else {})]}
        if path == "/tokenize":
            tokens = self._ids(asked.body)
            return {"count": len(tokens), "tokens": tokens}
        if path == "/detokenize":
            return {"prompt": self.tokenizer.decode(pack(json.loads(asked.body)["tokens"]))}
        return self._generate(asked.body) if path.startswith("/v1/") else None

    def _ids(self, body: bytes) -> list[int]:
        chat = "messages" in json.loads(body)
        request = inspect(Kind.CHAT if chat else Kind.COMPLETION, body)
        if isinstance(request, CompletionBody):
            return list(memoryview(self.tokenizer.completion_ids(request)[0]).cast("I"))
        return list(memoryview(self.tokenizer.chat_ids(request)).cast("I"))  # type: ignore[arg-type]

    def _generate(self, body: bytes) -> Any:
        fields = json.loads(body)
        given = fields.pop("kv_transfer_params", {}).get("prompt_token_ids")
        if isinstance(fields.get("prompt"), list):
            given, fields["prompt"] = fields["prompt"], fields["user"]
        if self.excludes and fields.get("tool_choice") == "none":
            fields.pop("tools", None)
        ids = self._ids(json_bytes(fields))
        if given is not None:
            self.forwarded += 1
            self.wrong += given != ids
        self.answered += 1
        return {"usage": {"prompt_tokens": len(given or ids), "completion_tokens": 1}}

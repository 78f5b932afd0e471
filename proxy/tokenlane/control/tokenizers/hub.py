"""A tokenizer from the Hugging Face hub, by the hub's own client, into the hub's own cache.

Invariants:
- It runs before the gateway serves, in a process of its own that is killed at a deadline:
  whatever a hub, a proxy or a dropped packet does, the start goes on without it.
- Only the few small files that decide a prompt's ids are fetched, all of one revision; no weights.
- Where and with what token is the client's matter (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).
"""

import asyncio
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tokenlane.config.keyring import HUB_VARIABLES, environment
from tokenlane.control.tokenizers.finder import FILE

_CONNECT_DEADLINE_S = 3.0

# As tokenlane.tokens.folder reads them; the first must be there.
FILES = (
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "params.json",
)


async def fetch(
    repository: str, deadline_s: float, tell: Callable[[str], None], environ: Mapping[str, str]
) -> str:
    """Fetches a repository's tokenizer; an empty text if it is in the cache now, else why not.
    tell: hears of each file."""
    if environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return "the hub is not asked (HF_HUB_OFFLINE)"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tokenlane.control.tokenizers.hub", repository),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**environment(*HUB_VARIABLES, environ=environ), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    assert child.stdout is not None
    why = ""
    try:
        async with asyncio.timeout(deadline_s):
            async for line in child.stdout:
                kind, _, text = line.decode("utf-8", "replace").strip().partition(" ")
                if kind == "file":
                    tell(text)
                else:
                    why = text
            if await child.wait() and not why:
                why = "its client ended without a word"
    except TimeoutError:
        why = f"no whole answer within {deadline_s:g} s (tokens.fetch_deadline_s)"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return why and f"the hub: {why}"


def _reachable(endpoint: str) -> bool:
    """Whether something listens there; its client would find out slowly, by trying again."""
    if urllib.request.getproxies():
        return True  # only the proxy knows
    parts = urlsplit(endpoint)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_DEADLINE_S).close()
    except OSError:
        return False
    return True


def _fetch(repository: str) -> str:
    """Fetches the files, in the child; why not, if not."""
    # A library of half a second, which nothing else needs.
    from huggingface_hub import constants, hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if not _reachable(constants.ENDPOINT):
        return f"{urlsplit(constants.ENDPOINT).hostname} cannot be reached from here"
    revision: str | None = None
    for name in FILES:
        try:
            path = hf_hub_download(repository, name, revision=revision, etag_timeout=5)
        except LocalEntryNotFoundError:
            return "cannot be reached"
        except EntryNotFoundError:
            if name == FILE:
                return f"{repository} has no {FILE}"
            continue
        except GatedRepoError:
            return f"{repository} wants a token that may read it (HF_TOKEN)"
        except RepositoryNotFoundError:
            return f"{repository} is not there, or wants a token (HF_TOKEN)"
        except Exception as error:  # noqa: BLE001 - whatever its client meets, the start goes on
            return f"cannot be reached ({type(error).__name__})"
        # .../snapshots/REVISION/NAME: the rest is of the same one.
        revision = os.path.basename(os.path.dirname(path))  # noqa: PTH119, PTH120 - of a text
        sys.stdout.write(f"file {name}, {os.path.getsize(path):,} bytes\n")  # noqa: PTH202
        sys.stdout.flush()
    return ""


def main() -> int:
    """Entry point of the child."""
    why = _fetch(sys.argv[1])
    if why:
        sys.stdout.write(f"why {why}\n")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())

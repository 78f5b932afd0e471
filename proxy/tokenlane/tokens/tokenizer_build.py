"""A `tokenizers.Tokenizer` from the files of a folder, as transformers 5 builds it.

Invariants:
- tokenizer.json decides, except where the folder's class (`tokenlane.tokens.tokenizer_class`) makes
  components of its own; `add_bos_token` and `add_eos_token` are ignored, since transformers ignores
  them where there is a tokenizer.json.
- Added tokens in this order: those of tokenizer.json, those of `added_tokens_decoder` that differ,
  named special tokens, extra special tokens. Each only if its text is not there yet.

Not covered (reported as `doubts`): other classes that rebuild their components, models with
tokenizer code of their own, and the repair of the split pattern of old Mistral files.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tokenlane.tokens import tokenizer_class

Json = dict[str, Any]

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


# These add their special tokens once more at last, without the flags that were given.
MARKS_AGAIN = frozenset(("Qwen2Tokenizer",))


class Built(msgspec.Struct, frozen=True):
    """The tokenizer, its special tokens by name (as templates see them), and why it may differ."""

    backend: Backend
    specials: dict[str, str]
    doubts: tuple[str, ...]


def build(tokenizer: Json, config: Json, model: Json, names: Iterable[str] = ()) -> Built:
    """Build it from tokenizer.json, tokenizer_config.json and config.json. names: what vLLM may
    know the model by. Raises what `tokenizers` raises for a file it cannot read."""
    kind = tokenizer_class.class_of(config, model)
    config = {**tokenizer_class.tables().rebuild.get(kind, {}), **config}
    components = tokenizer_class.own_components(kind, tokenizer["model"], config)
    if components is not None:
        listed = tokenizer.get("added_tokens", [])
        tokenizer = {**tokenizer, **components, "added_tokens": []}
        config.setdefault("added_tokens_decoder", {str(one["id"]): one for one in listed})
    backend = Backend.from_str(json.dumps(tokenizer))
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    _add_missing(backend, config)
    specials = _named(config)
    if kind in MARKS_AGAIN:
        again = dict.fromkeys((*specials.values(), *filter(None, map(_text, _unnamed(config)))))
        backend.add_tokens([AddedToken(text, special=True) for text in again])
    return Built(
        backend=backend,
        specials=specials,
        doubts=tuple(tokenizer_class.doubts(kind, config, names, rebuilt=components is not None)),
    )


def described(added_tokens: Json, config: Json, listed: list[Json]) -> Json:
    """Return the ids of an old added_tokens.json as a configuration describes them;
    tokenizer.json's list counts more."""
    if not added_tokens:
        return {}
    special = {*_named(config).values(), *map(_text, _unnamed(config))}
    plain = dict.fromkeys(("lstrip", "rstrip"), False)
    old = {
        str(at): {**plain, "content": text, "normalized": not known, "special": known}
        for text, at in added_tokens.items()
        for known in (text in special,)
    }
    return {"added_tokens_decoder": old | {str(one["id"]): one for one in listed}}


def _add_missing(backend: Backend, config: Json) -> None:
    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    described = sorted((int(at), given) for at, given in listed.items())
    adding = [
        token
        for _, given in described
        if (token := _token(given)) is not None and repr(token) not in present
    ]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in adding}
    named = [_special(given) for given in _named_raw(config).values()]
    for token in [*named, *map(_token, _unnamed(config))]:
        if token is not None and token.content not in known:
            known.add(token.content)
            adding.append(token)
    if adding:
        backend.add_tokens(adding)


def _named_raw(config: Json) -> Json:
    """Return special tokens with a name: the usual ones, then the model's own (`image_token`)."""
    named = {name: config[name] for name in NAMES if config.get(name) is not None}
    for name, given in config.items():
        if name.endswith("_token") and name not in named and _text(given) is not None:
            named[name] = given
    extra = config.get("extra_special_tokens")
    return {**named, **extra} if isinstance(extra, dict) else named


def _unnamed(config: Json) -> list[Any]:
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return extra if isinstance(extra, list) else []


def _named(config: Json) -> dict[str, str]:
    named = {name: _text(given) for name, given in _named_raw(config).items()}
    return {name: text for name, text in named.items() if text is not None}


def _text(token: Any) -> str | None:
    """Return a special token's text, given as text or described."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special(given: Any) -> AddedToken | None:
    """Return a named token, which is special whatever its description says."""
    return _token({**given, "special": True} if isinstance(given, dict) else given)


def _token(given: Any) -> AddedToken | None:
    if isinstance(given, str):
        return AddedToken(given, special=True)
    text = _text(given)
    if text is None:
        return None
    return AddedToken(text, **{name: bool(given[name]) for name in FLAGS if name in given})

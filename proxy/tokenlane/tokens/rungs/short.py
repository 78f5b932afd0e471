"""The short rung: a job done where it stands, on the loop, where that costs less than a hop.

Invariants:
- Straight through, without steps: render, look for a known opening, encode and hash the rest.
- What the rest costs shows after the render. Where it is predicted to take longer than the limit,
  nothing more is done here: the job goes on elsewhere with the text it has. An opening that is to
  be kept may take as long as the loop may stall: it is encoded once.
- The ids are those that the job's own steps would make.
- A body whose opening is known is not read as far as that: one of many teaches the others.
"""

import time
from typing import Final

from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import Prompt
from tokenlane.protocols import bodies, prompt_fields
from tokenlane.protocols.bodies import Chatting, CompletionBody, ResponsesBody
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.body_marks import BodySource, learn
from tokenlane.tokens.caches.openings import Opening
from tokenlane.tokens.caches.prefixes import Mark, Prefix
from tokenlane.tokens.caches.shapes import shape_of
from tokenlane.tokens.encode.word_cuts import LOOP_CHARS, WORD_S_PER_CHAR
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.keys import front_bytes, options_digest, prompt_bytes
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.tokenizer import Rendering

# An opening teaches the bodies that begin with it again after so many uses: what it taught may have
# been evicted.
_USES: Final = 64
# A name of this module is found sooner than another's (compiled).
_ABSENT: Final = bodies.ABSENT


def run(job: TokenJob, settings: TokenSettings) -> Tokenized | None:
    """Return the job's result, made in about a hop's time of this thread; None where it would take
    longer."""
    began_s, speed = time.perf_counter(), job.model.speed
    try:
        text, special = _text(job)
        if text is None:
            size_bytes = job.size_bytes
            if speed.render_s(size_bytes) + speed.encode_s(size_bytes) > settings.thread_hop_s:
                return None
            return job.run()
        rendered_s = time.perf_counter()
        if type(job.body) is not CompletionBody:
            speed.learn_render(job.render_bytes, rendered_s - began_s)
        words = type(job.body) is CompletionBody and job.model.tokenizer.encoder.cuts_words
        made = _encoded(job.model, text, special, job.block_tokens, job.salt, settings, words)
    except BaseException as problem:  # noqa: BLE001 - it is the result
        return Tokenized.failed(problem, time.perf_counter() - began_s)
    if made is None:
        return None
    return Tokenized(made[0], None, time.perf_counter() - began_s)


def takes(chat: Chatting) -> bool:
    """Return whether a conversation's prompt is its rendered text, whole and without a say of its
    own in what is put around it."""
    said = type(chat) is not ResponsesBody and chat.add_special_tokens is not _ABSENT
    return chat.truncate_prompt_tokens is _ABSENT and not said


def plain(
    model: LoadedModel,
    chat: Chatting,
    block_tokens: int,
    salt: bytes,
    settings: TokenSettings,
    source: BodySource | None = None,
) -> Prompt | None:
    """Return the prompt of a conversation that `takes` takes, without a job: where its shape is
    known, and it takes about a hop's time. None for all others, and where anything is wrong with
    it: a job then reports what. source: its body, where others may begin as it does."""
    began_s, size_bytes = time.perf_counter(), prompt_bytes(chat).nbytes + front_bytes(chat).nbytes
    if model.speed.render_s(size_bytes) > settings.thread_hop_s:
        return None
    try:
        messages, counts = model.tokenizer.messages_of(chat)
        shape = shape_of(options_digest(chat), messages)
        residual = None if shape is None else model.caches.shapes.residual(shape)
        if shape is None or residual is None:
            return None
        text = residual.filled(shape.texts)
        model.speed.learn_render(size_bytes, time.perf_counter() - began_s)
        special = prompt_fields.flag(chat.add_special_tokens, False)
        made = _encoded(model, text, special, block_tokens, salt, settings)
    except (RequestError, Unrenderable):
        return None
    if made is None:
        return None
    prompt, opening = made
    if source is not None and opening is not None and opening.uses % _USES == 1:
        marks = [Mark(opening.chars, len(opening.ids), 0)]
        begun = Prefix(b"", opening.text, opening.ids, opening.blocks, marks)
        learn(source, chat, Rendering(text, shape, residual, counts), begun, salt, block_tokens)
    return prompt


def _text(job: TokenJob) -> tuple[str | None, bool]:
    """Return the one text to encode, and whether special tokens go around it; no text where the
    prompt is ids, several texts, or to be truncated."""
    body = job.body
    if prompt_fields.value(body.truncate_prompt_tokens) is not None:
        return None, False
    if type(body) is not CompletionBody:
        job.text = job.rendered(body, hasty=True)
        return job.text, prompt_fields.flag(body.add_special_tokens, False)
    special = prompt_fields.flag(body.add_special_tokens, True)
    prompts = job.model.tokenizer.prompts(body)
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0], special
    return None, False


def _encoded(
    model: LoadedModel,
    text: str,
    special: bool,
    block_tokens: int,
    salt: bytes,
    settings: TokenSettings,
    words: bool = False,
) -> tuple[Prompt, Opening | None] | None:
    """Return the prompt of a text and its opening, if that is known; None where the rest is
    predicted to take too long. words: as `Encoder.starts`'s."""
    encoder, speed, openings = model.tokenizer.encoder, model.speed, model.caches.openings
    limit_s = settings.thread_hop_s
    affixes = encoder.affixes if special else (b"", b"")
    if affixes is None:
        if _is_too_long(speed, len(text), limit_s, settings):
            return None
        ids = encoder.encode(text, add_special_tokens=special)
        return _prompt(ids, block_tokens, salt, b""), None
    root = b"%b:%d:%b" % (b"1" if special else b"0", block_tokens, salt)
    opening = openings.find(encoder, root, text, words=words)
    if opening is None and (end := openings.ends_at(encoder, root, text, words=words)):
        # Of a completion what follows its opening may be as long as that.
        most_chars = len(text) if words else end
        if _is_too_long(speed, most_chars, settings.stall_budget_s, settings):
            return None
        began_s, head = time.perf_counter(), text[:end]
        ids = affixes[0] + encoder.encode_piece(encoder.begun(head))
        speed.learn_encode(end, time.perf_counter() - began_s)
        opening = Opening(head, ids, block_hashes(ids, block_tokens, salt))
        openings.put(root, opening)
    if opening is None:
        rest, known_ids, known_blocks = encoder.begun(text), affixes[0], b""
    else:
        rest, known_ids, known_blocks = text[opening.chars :], opening.ids, opening.blocks
    if _is_too_long(speed, len(rest), limit_s, settings):
        return None
    began_s = time.perf_counter()
    ids = b"".join((known_ids, encoder.encode_piece(rest), affixes[1]))
    prompt = _prompt(ids, block_tokens, salt, known_blocks)
    speed.learn_encode(len(rest), time.perf_counter() - began_s)
    return prompt, opening


def _is_too_long(speed: Speed, chars: int, limit_s: float, settings: TokenSettings) -> bool:
    """Return whether so much text is predicted to take longer than the limit; or, where it is much,
    might stall the loop, were it one word."""
    may_stall = chars > LOOP_CHARS and chars * WORD_S_PER_CHAR > settings.stall_budget_s
    return may_stall or speed.encode_s(chars) > limit_s


def _prompt(ids: bytes, block_tokens: int, salt: bytes, known: bytes) -> Prompt:
    blocks = block_hashes(ids, block_tokens, salt, known)
    return Prompt((ids,), blocks, block_tokens, len(ids) // 4)

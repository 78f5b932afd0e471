"""Probes tell engines apart, and their findings are remembered as far as a disk allows."""

import json
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.tokens.models import folder_with, metaspace_spec
from tokenlane.tokens import probe, probe_corpus
from tokenlane.tokens.chat.minijinja_template import FastTemplate
from tokenlane.tokens.chat.template import Template, environment
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.fastokens_encoder import FastEncoder
from tokenlane.tokens.tokenizer import Tokenizer

TURNS = (
    "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('No critics!') }}"
    "{% endif %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}{{ bos_token }}"
)


def backend() -> Backend:
    return Backend.from_file(str(demo_folder() / "tokenizer.json"))


def template_why(source: str, other: str) -> str:
    """What the probe finds between a template and another one, in the fast engine."""
    fast = FastTemplate(other, environment())
    return probe._template_differs(Template(source), {"bos_token": "<s>"}, fast)


def test_the_corpus_is_the_same_every_time() -> None:
    assert probe_corpus.texts(["<a>", "<b>"]) == probe_corpus.texts(["<a>", "<b>"])
    chats = list(probe_corpus.chats(["x"], ["y"], ["z"]))
    assert repr(chats) == repr(list(probe_corpus.chats(["x"], ["y"], ["z"])))
    assert {message["role"] for chat in chats for message in chat.messages} >= {
        "system", "developer", "user", "assistant", "tool",
    }  # fmt: skip
    assert probe_corpus.texts([])


def test_another_tokenizer_is_told_apart() -> None:
    encoder = Encoder(backend())
    assert probe._encoder_differs(encoder, FastEncoder(encoder.to_json())) == ""
    other = backend()
    other.add_tokens([AddedToken("quick", normalized=False)])
    assert "other ids" in probe._encoder_differs(encoder, FastEncoder(other.to_str()))


def test_a_few_texts_may_be_left_to_the_library() -> None:
    encoder = Encoder(Backend.from_str(json.dumps(metaspace_spec())))
    fast = FastEncoder(encoder.to_json())
    assert fast.encode(["<0x41>"], add_special_tokens=False) is None
    assert probe._encoder_differs(encoder, fast) == ""


def test_an_engine_that_leaves_most_texts_is_no_help() -> None:
    class Idle:
        keeps_words = False

        def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes] | None:
            return None

    assert "to the library" in probe._encoder_differs(Encoder(backend()), Idle())


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (TURNS, ""),
        (TURNS.replace("| trim", ""), "another text"),
        # It is silent where the reference refuses.
        (TURNS.replace("raise_exception('No critics!')", "''"), "another text"),
        (TURNS.replace("bos_token", "eos_token"), "another text"),
        # What it refuses is rendered by the reference, but then it is of no use.
        ("{{ raise_exception('No!') }}", "gives up"),
    ],
)
def test_another_template_is_told_apart(other: str, why: str) -> None:
    assert template_why(TURNS, other).startswith(why)
    assert bool(template_why(TURNS, other)) == bool(why)


@pytest.mark.parametrize(
    "shown",
    [
        "{{ d.title }}: {{ d.text }}",
        "{{ d['title'] | default('?') }}",
        "{% if d.snippet is defined %}{{ d.snippet }}{% endif %}",
    ],
)
def test_documents_are_tried(shown: str) -> None:
    source = TURNS + "{% for d in documents or [] %}" + shown + "{% endfor %}"
    assert template_why(source, source) == ""
    assert template_why(source, TURNS).startswith("another text")


def test_findings_are_kept_by_what_they_are_about(tmp_path: Path) -> None:
    findings = probe.Findings(tmp_path / "new")
    assert findings.get("encoder", "a", lambda: "because") == "because"
    assert probe.Findings(tmp_path / "new").get("encoder", "a", str) == "because"
    assert findings.get("encoder", "b", str) == ""
    assert findings.get("template", "a", str) == ""
    assert len(list((tmp_path / "new").iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b"3"])
def test_a_broken_finding_is_found_again(tmp_path: Path, content: bytes) -> None:
    findings = probe.Findings(tmp_path)
    findings.get("encoder", "a", lambda: "wrong")
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert findings.get("encoder", "a", lambda: "right") == "right"
    assert json.loads(path.read_bytes()) == {"why": "right"}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = probe.Findings(tmp_path / "file")
    assert findings.get("encoder", "a", lambda: "found") == "found"
    model = Tokenizer.load("m", demo_folder(), cache_dir=tmp_path / "file")
    assert model.fast.why == {}


def test_a_user_without_a_home_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # nor is there an account
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    findings = probe.Findings()
    assert findings.get("encoder", "a", lambda: "found") == "found"
    assert findings.get("encoder", "a", lambda: "again") == "again"
    assert not list(tmp_path.iterdir())


def test_what_has_no_fast_path_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source = "{% for m in messages %}{{ m.content | title }}{% endfor %}"
    model = Tokenizer.load("m", folder_with(tmp_path / "m", chat_template=source))
    assert model.fast.encoder == "fastokens"
    assert model.fast.template == "jinja2"
    assert model.fast.why == {"template default": "not known to be alike: the filter title"}
    assert "no fast path for its template default: not known" in caplog.text


def test_a_missing_engine_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fastokens", "minijinja"):
        monkeypatch.setitem(sys.modules, name, None)
    model = Tokenizer.load("m", demo_folder(), cache_dir=tmp_path)
    assert (model.fast.encoder, model.fast.template) == ("tokenizers", "jinja2")
    assert sorted(model.fast.why) == ["encoder", "template default"]
    assert model.encode("hello", add_special_tokens=False)


def test_a_tokenizer_that_splits_specials_is_not_taken_for_its_twin(tmp_path: Path) -> None:
    findings = probe.Findings(tmp_path)
    plain, splitting = backend(), backend()
    splitting.encode_special_tokens = True
    assert Encoder(plain).to_json() == Encoder(splitting).to_json()
    assert probe.fast_encoder(Encoder(plain), findings)[0] is not None
    assert probe.fast_encoder(Encoder(splitting), findings)[0] is None

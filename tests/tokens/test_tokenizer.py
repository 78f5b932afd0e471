"""A model's folder to the ids of its requests."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tokens.models import folder_with, marked_folder
from tokenlane.errors import ConfigError, RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields, CompletionFields, MessagesFields, ResponsesFields
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.ids import unpack
from tokenlane.tokens.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer.load("demo", demo_folder())


def chat(**body: Any) -> ChatFields:
    return msgspec.json.decode(msgspec.json.encode({"messages": HI} | body), type=ChatFields)


def completion(prompt: Any, **body: Any) -> CompletionFields:
    given = {"prompt": prompt} | body
    return msgspec.json.decode(json.dumps(given).encode(), type=CompletionFields)


PROMPT = "<|im_start|>assistant\n"
USER = "<|im_start|>user\nhi<|im_end|>\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, USER + PROMPT),
        ({"add_generation_prompt": False}, USER),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, USER + PROMPT),
        ({"chat_template_kwargs": {"enable_thinking": False}}, USER + PROMPT + NO_THOUGHT),
        ({"chat_template_kwargs": {"enable_thinking": None}}, USER + PROMPT),
        ({"chat_template_kwargs": {"unknown": 1}}, USER + PROMPT),
        ({"reasoning_effort": "none"}, USER + PROMPT + NO_THOUGHT),
        ({"reasoning_effort": "high"}, USER + PROMPT),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            USER + PROMPT,
        ),
        ({"documents": [{"title": "t", "text": "x"}]}, USER + PROMPT),
        ({"kv_transfer_params": {"x": 1}}, USER + PROMPT),
        (
            {
                "messages": [*HI, {"role": "assistant", "content": "we"}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            USER + PROMPT + "we",
        ),
        (
            {"messages": [{"role": "developer", "content": "d"}, *HI]},
            "<|im_start|>developer\nd<|im_end|>\n" + USER + PROMPT,
        ),
        (
            {"messages": [HI[0] | {"name": "bob"}]},
            "<|im_start|>user\n[bob] hi<|im_end|>\n" + PROMPT,
        ),
    ],
)
def test_chat_text(demo: Tokenizer, body: dict[str, Any], expected: str) -> None:
    assert demo.chat_text(chat(**body)) == expected


def test_the_demo_template_knows_tools(demo: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "be brief"},
        *HI,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "tool", "tool_call_id": "2", "content": "8"},
    ]
    text = demo.chat_text(chat(messages=messages, tools=[{"function": {"name": "f"}}]))
    assert text.startswith("<|im_start|>system\nbe brief\n\nFunctions")
    assert '{"type": "function", "function": {"name": "f", "description": null' in text
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n' in text
    answers = "".join(f"\n<tool_response>\n{one}\n</tool_response>" for one in "78")
    assert f"<|im_start|>user{answers}<|im_end|>\n" in text


# Indented by a template, it would be 240 times as long.
DEEP = json.loads('{"a":' * 480 + "1" + "}" * 480)
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"chat_template": "{{ x }}"}, "request-template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "template-kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "template-kwargs"),
    ({"chat_template_kwargs": {"tools": []}}, "template-kwargs"),
    ({"chat_template_kwargs": 5}, "template-kwargs"),
    ({"chat_template_kwargs": {"documents": "x"}}, "template-kwargs"),
    ({"documents": [{"title": 5}]}, "field-shape"),
    ({"reasoning_effort": "huge"}, "field-shape"),
    ({"add_generation_prompt": "yes"}, "field-shape"),
    ({"kv_transfer_params": {"prompt_token_ids": [1]}}, "forwarded-ids"),
    ({"kv_transfer_params": msgspec.Raw(b'{"prompt\\u005ftoken_ids":[1]}')}, "forwarded-ids"),
    ({"truncate_prompt_tokens": -1}, "truncation"),
    ({"chat_template_kwargs": {"enable_thinking": DEEP}}, "json"),
    ({"tools": [{"function": {"name": "f", "parameters": DEEP}}]}, "json"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "a": DEEP}]}]},
        "json",
    ),
]


@pytest.mark.parametrize(("body", "reason"), UNKNOWN)
def test_what_is_not_known_is_not_claimed(
    demo: Tokenizer, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unrenderable) as unknown:
        demo.chat_ids(chat(**body))
    assert unknown.value.reason == reason


def test_refusals_are_bad_requests(demo: Tokenizer) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {"messages": []},
        {"tools": []},
        {"continue_final_message": True},
    )
    for body in bodies:
        with pytest.raises(RequestError) as refused:
            demo.chat_text(chat(**body))
        assert refused.value.status == 400


def test_specials_are_added_to_completions_and_not_to_chats(tmp_path: Path) -> None:
    model = Tokenizer.load("bos", marked_folder(tmp_path))
    hi = unpack(model.encode("hi", add_special_tokens=False)).tolist()
    (plain,) = model.completion_ids(completion("hi"))
    assert unpack(plain).tolist() == [8183, *hi]
    (bare,) = model.completion_ids(completion("hi", add_special_tokens=False))
    assert unpack(bare).tolist() == hi
    assert unpack(model.chat_ids(chat())).tolist()[0] != 8183
    marked = model.chat_ids(chat(add_special_tokens=True))
    assert unpack(marked).tolist()[0] == 8183
    # vLLM adds them to responses, too.
    said = chat().messages
    assert model.chat_ids(ResponsesFields(input=said)) == marked
    assert model.chat_ids(MessagesFields(messages=said)) == model.chat_ids(chat())
    # The tokenizer truncates the text and leaves room for its own token.
    words = "one two three four five six"
    ids = unpack(model.encode(words, add_special_tokens=False)).tolist()
    for side, expected in (
        (None, [8183, *ids[-2:]]), ("left", ids[-3:]), ("right", [8183, *ids[:2]]),
    ):  # fmt: skip
        request = completion(words, truncate_prompt_tokens=3, truncation_side=side)
        assert unpack(model.completion_ids(request)[0]).tolist() == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ("hi",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], (b"\x01\0\0\0\x02\0\0\0",)),
        ([[1], [2]], (b"\x01\0\0\0", b"\x02\0\0\0")),
        (["a", [1]], ("a", b"\x01\0\0\0")),
    ],
)
def test_completion_prompts(demo: Tokenizer, prompt: Any, expected: tuple[str | bytes]) -> None:
    assert demo.prompts(completion(prompt)) == expected


@pytest.mark.parametrize("prompt", [[1, "a"], [-1], [2**32], [[1], 5], [1.5, 2]])
def test_odd_prompts(demo: Tokenizer, prompt: Any) -> None:
    with pytest.raises((RequestError, Unrenderable)):
        demo.prompts(completion(prompt))


@pytest.mark.parametrize("body", [{"suffix": "x"}, {"prompt_embeds": "x"}, {"prompt": None}])
def test_completions_that_are_not_known(demo: Tokenizer, body: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable):
        demo.completion_ids(completion(**({"prompt": "a"} | body)))


# Folders


def test_the_demo_folder_is_well_trodden(demo: Tokenizer) -> None:
    assert demo.doubts == ()
    assert not demo.volatile
    assert demo.max_model_tokens == 131072
    assert demo.specials == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert "cuts=exact" in repr(demo)
    size_bytes = sum(path.stat().st_size for path in demo_folder().iterdir())
    assert size_bytes < 2_000_000


def test_a_developer_becomes_a_system_message_where_templates_lack_the_role(
    tmp_path: Path,
) -> None:
    template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    model = Tokenizer.load("m", folder_with(tmp_path, chat_template=template))
    messages = [*HI, {"role": "developer", "content": "d"}]
    assert model.chat_text(chat(messages=messages)) == "[system:d][user:hi]"


def test_templates_by_name_and_by_file(tmp_path: Path) -> None:
    tools = [{"function": {"name": "f"}}]
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    folder = folder_with(tmp_path, chat_template=named)
    model = Tokenizer.load("m", folder)
    assert (model.chat_text(chat()), model.chat_text(chat(tools=tools))) == ("D", "T")
    (folder / "chat_template.jinja").write_text("F")
    model = Tokenizer.load("m", folder)
    assert (model.chat_text(chat()), model.chat_text(chat(tools=tools))) == ("F", "F")


def test_a_processors_template_is_used_without_tools(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, chat_template="T")
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "chat_template.json").write_text('{"chat_template": "P"}')
    model = Tokenizer.load("m", folder)
    assert model.chat_text(chat()) == "P"
    assert model.chat_text(chat(tools=[{"function": {"name": "f"}}])) == "T"


def test_a_folder_without_a_template_encodes_completions_only(tmp_path: Path) -> None:
    model = Tokenizer.load("m", folder_with(tmp_path, chat_template=None))
    assert model.completion_ids(completion("hi"))
    with pytest.raises(Unrenderable) as unknown:
        model.chat_text(chat())
    assert unknown.value.reason == "no-chat-template"


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", '{"architectures": ["DeepseekV4ForCausalLM"]}'), ("tekken.json", "{}")],
)
def test_models_with_a_renderer_of_their_own(tmp_path: Path, name: str, content: str) -> None:
    folder = folder_with(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(Unrenderable) as unknown:
        Tokenizer.load("m", folder).chat_text(chat())
    assert unknown.value.reason == "own-renderer"


def test_added_and_special_tokens_of_the_configuration(tmp_path: Path) -> None:
    described = {"content": "<x>", "lstrip": False, "rstrip": False, "normalized": False,
                 "single_word": False, "special": False}  # fmt: skip
    folder = folder_with(
        tmp_path,
        added_tokens_decoder={"8192": described},
        bos_token="<b>",
        image_token="<i>",
        additional_special_tokens=["<n>"],
    )
    model = Tokenizer.load("m", folder)
    ids = unpack(model.encode("<x><b><i><n>", add_special_tokens=False)).tolist()
    assert ids == [8192, 8193, 8194, 8195]
    assert model.specials["image_token"] == "<i>"


@pytest.mark.parametrize(
    ("kind", "text", "count"), [("Qwen2Tokenizer", "12 3", 4), ("LlamaTokenizer", "", 0)]
)
def test_classes_that_rebuild_their_components(
    tmp_path: Path, kind: str, text: str, count: int
) -> None:
    model = Tokenizer.load("m", folder_with(tmp_path, tokenizer_class=kind))
    assert len(model.encode(text, add_special_tokens=False)) // 4 == count
    assert model.doubts == ()


def test_doubts_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tokenizer_class="T5TokenizerFast", auto_map={})
    assert Tokenizer.load("m", folder).doubts == (
        "T5Tokenizer may rebuild what tokenizer.json says",
    )


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("x"), "as JSON"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("["), "as JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "one JSON object"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"), "compile"),
    ],
)
def test_a_broken_folder_is_one_clear_sentence(tmp_path: Path, break_it: Any, message: str) -> None:
    folder = folder_with(tmp_path)
    break_it(folder)
    with pytest.raises(ConfigError, match=message) as broken:
        Tokenizer.load("my-model", folder)
    assert str(broken.value).startswith("tokenizer of my-model: ")
    assert "\n" not in str(broken.value)


def test_context_length_is_not_guessed_where_positions_are_scaled(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, model_max_length=10**30)
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    assert Tokenizer.load("m", folder).max_model_tokens == 4096
    scaled = {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4}}
    (folder / "config.json").write_text(json.dumps(scaled))
    assert Tokenizer.load("m", folder).max_model_tokens is None

"""Text to tokens and back with small tokenizers made here, in the ways that chat templates differ."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from rlrun.plugins.types import Row
from rlrun.runner.host.remote_code import code_files
from rlrun.runner.prompts.conversations import encode_conversation, encode_demonstration
from rlrun.runner.prompts.end_tokens import end_token_ids
from rlrun.runner.prompts.tokenizer import Tokenizer, is_byte_level, token_bytes
from tests.chat_templates import make_chat_tokenizer
from tests.coded_tokenizer import make_coded_tokenizer
from tests.tiny_models import END_ID, make_tiny_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EMPTY_THOUGHT = CHATML.replace(
    "{{ m.content }}", "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
)
THOUGHT_IN_PROMPT = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
USER_FIRST = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
WITHOUT_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
ROW = Row("7", "2 + 2?", label="4", response="It is 4.")
ROW_tokenizer_loading = Row("7", "Grüße <|im_end|> 2 + 2?", label="4")


def make(folder: Path, template: str | None = CHATML, *, bos: bool = False, **configs: Any) -> Tokenizer:
    """A tokenizer over bytes with special tokens; `configs` are further JSON files of the folder."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    for name, values in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return Tokenizer(folder)


def raw(tokenizer: Tokenizer, tokens: Any) -> str:
    return str(tokenizer._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def test_a_prompt_ends_where_the_response_begins(tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    tokens = tokenizer.encode_prompt(ROW, apply_chat_template=True)
    assert tokens.dtype == np.int32
    assert raw(tokenizer, tokens) == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    chat = Row("8", [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    rendered = raw(tokenizer, tokenizer.encode_prompt(chat, apply_chat_template=True))
    assert rendered.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu")


def test_plain_prompts_get_what_the_tokenizer_puts_before_text(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, bos=True)
    prompt, response = encode_demonstration(tokenizer, ROW, apply_chat_template=False)
    assert raw(tokenizer, prompt) == "<s>2 + 2?"
    assert raw(tokenizer, response) == "It is 4.<|im_end|>"
    assert raw(tokenizer, tokenizer.encode_prompt(ROW, apply_chat_template=True)).startswith(
        "<|im_start|>user"
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "It is 4.<|im_end|>"),
        (EMPTY_THOUGHT, "<think>\n\n</think>\n\nIt is 4.<|im_end|>"),
        (WITHOUT_END, " It is 4.\n<|im_end|>"),
    ],
)
def test_a_demonstration_is_what_the_template_makes_of_the_answer(
    tmp_path: Path, template: str, expected: str
) -> None:
    tokenizer = make(tmp_path, template)
    prompt, response = encode_demonstration(tokenizer, ROW, apply_chat_template=True)
    assert np.array_equal(prompt, tokenizer.encode_prompt(ROW, apply_chat_template=True))
    assert raw(tokenizer, response) == expected
    assert response[-1] in tokenizer.eos_token_ids


def test_a_template_that_prompts_with_what_it_later_drops_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 7: the chat template renders the prompt .* differently"):
        encode_demonstration(make(tmp_path, THOUGHT_IN_PROMPT), ROW, apply_chat_template=True)


def test_rows_that_cannot_be_encoded_are_named(tmp_path: Path) -> None:
    system_first = Row("9", [{"role": "system", "content": "s"}])
    with pytest.raises(ValueError, match="row 9: the chat template refuses the conversation: user first"):
        make(tmp_path / "a", USER_FIRST + CHATML).encode_prompt(system_first, apply_chat_template=True)
    with pytest.raises(ValueError, match=r"row 9: .* set data\.apply_chat_template = true"):
        make(tmp_path / "b").encode_prompt(system_first, apply_chat_template=False)
    with pytest.raises(ValueError, match=r"no chat template; set data\.apply_chat_template = false"):
        make(tmp_path / "c", None).encode_prompt(ROW, apply_chat_template=True)
    with pytest.raises(ValueError, match="row 3: SFT needs a demonstration"):
        encode_demonstration(make(tmp_path / "d"), Row("3", "q"), apply_chat_template=True)


def test_decoding_leaves_out_special_tokens_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    text = "  größer , 'quoted' . \n三\n"
    _, response = encode_demonstration(tokenizer, Row("0", "q", response=text), apply_chat_template=True)
    assert tokenizer.decode(response) == text
    assert tokenizer.decode_batch([response, response[:2], response[:0]]) == [text, "  ", ""]


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, ["<|im_end|>"]),
        ({"config": {"eos_token_id": 256}}, ["<|im_end|>", "<|endoftext|>"]),
        (
            {"config": {"eos_token_id": 257}, "generation_config": {"eos_token_id": [258, 256]}},
            ["<|im_end|>", "<|endoftext|>", "<|im_start|>"],
        ),
        ({"generation_config": {"temperature": 1}}, ["<|im_end|>"]),
    ],
)
def test_end_tokens_are_those_of_all_files(
    tmp_path: Path, configs: dict[str, Any], expected: list[str]
) -> None:
    tokenizer = make(tmp_path, **configs)
    assert [raw(tokenizer, [token]) for token in tokenizer.eos_token_ids] == expected
    assert end_token_ids(tmp_path) == tokenizer.eos_token_ids  # the native engine's, which loads none


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer: none of tokenizer\.json, .*; copy it there too"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no tokenizer that can be loaded: [^\n]*$"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("template", [True, False])
def test_of_a_text_that_is_too_long_as_much_is_looked_at_as_shows_it(tmp_path: Path, template: bool) -> None:
    tokenizer = make(tmp_path)
    whole = tokenizer.encode_prompt(Row("1", "ab " * 5000), template)
    for most in (len(whole) - 1, len(whole), len(whole) + 1):
        assert np.array_equal(tokenizer.encode_prompt(Row("1", "ab " * 5000), template, limit=most), whole)
    assert 10 < len(tokenizer.encode_prompt(Row("1", "ab " * 5000), template, limit=10)) < len(whole) / 4


@pytest.mark.parametrize("template", [True, False])
def test_half_a_surrogate_pair_is_a_broken_row(tmp_path: Path, template: bool) -> None:
    with pytest.raises(ValueError, match=r"row 7: .*surrogates not allowed"):
        make(tmp_path).encode_prompt(Row("7", "\ud800 x"), template)


def test_a_config_that_contradicts_itself_is_told_as_the_user_s(tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["full_attention"] * 2}
    with pytest.raises(ValueError, match=r"config\.json contradicts itself: .*num_hidden_layers"):
        make(tmp_path, config=config)


MARKED = CHATML.replace(
    "{{ m.content }}<|im_end|>",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '' }}",
)
CHAT = Row(
    "9",
    [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3 + 3?"},
        {"role": "assistant", "content": "It is 6."},
    ],
)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by turn", "marked"])
def test_every_answer_of_a_chat_is_trained_and_nothing_else(tmp_path: Path, template: str) -> None:
    tokenizer = make(tmp_path, template)
    [sample] = encode_conversation(tokenizer, CHAT)
    prompt, response, mask = sample.prompt, sample.response, sample.mask
    assert raw(tokenizer, prompt) == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    assert raw(tokenizer, response[mask > 0]) == "4<|im_end|>It is 6.<|im_end|>"
    between = "\n<|im_start|>user\nAnd 3 + 3?<|im_end|>\n<|im_start|>assistant\n"
    assert raw(tokenizer, response[mask == 0]) == between
    assert len(response) == len(mask)
    assert mask[0] == mask[-1] == 1


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by turn", "marked"])
@pytest.mark.parametrize(("turn", "trained"), [(1, "It is 6.<|im_end|>"), (3, "4<|im_end|>")])
def test_a_turn_that_its_row_masks_is_context_alone(
    tmp_path: Path, template: str, turn: int, trained: str
) -> None:
    messages = [dict(message) for message in CHAT.prompt]  # type: ignore[arg-type]
    messages[turn]["step_loss_mask"] = 0
    tokenizer = make(tmp_path, template)
    [sample] = encode_conversation(tokenizer, Row("9", messages))
    assert raw(tokenizer, sample.response[sample.mask > 0]) == trained
    [whole] = encode_conversation(tokenizer, CHAT)
    tokens = np.concatenate([sample.prompt, sample.response])
    assert tokens.tolist() == np.concatenate([whole.prompt, whole.response])[: len(tokens)].tolist()


@pytest.mark.parametrize(
    ("masks", "problem"),
    [((0, 0), "row 9: every step_loss_mask is 0"), ((0.5, 1), "step_loss_mask of a message is 0.5")],
)
def test_masks_of_turns_that_leave_nothing_or_are_none_are_refused(
    tmp_path: Path, masks: tuple[float, float], problem: str
) -> None:
    messages = [dict(message) for message in CHAT.prompt]  # type: ignore[arg-type]
    messages[1]["step_loss_mask"], messages[3]["step_loss_mask"] = masks  # type: ignore[assignment]
    with pytest.raises(ValueError, match=problem):
        encode_conversation(make(tmp_path), Row("9", messages))


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by turn", "marked"])
def test_the_tools_of_a_chat_stand_in_what_is_trained(tmp_path: Path, template: str) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
    told = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + template
    tokenizer = make(tmp_path, told)
    [sample] = encode_conversation(tokenizer, replace(CHAT, metadata={"tools": [tool]}))
    assert raw(tokenizer, sample.prompt).startswith("add <|im_start|>user")


def test_chats_that_cannot_be_demonstrations_are_refused(tmp_path: Path) -> None:
    tokenizer = make(tmp_path / "plain")
    with pytest.raises(ValueError, match="row 9: SFT needs a demonstration; end the messages"):
        encode_conversation(tokenizer, Row("9", list(CHAT.prompt[:3])))  # type: ignore[arg-type]
    forgetful = make(tmp_path / "forgetful", THOUGHT_IN_PROMPT)
    with pytest.raises(ValueError, match="row 9: the chat template renders the prompt of a finished"):
        encode_conversation(forgetful, CHAT)


FORGETS_THOUGHTS = """\
{% set ns = namespace(question=-1) %}{% for m in messages %}{% if m.role == 'user' %}\
{% set ns.question = loop.index0 %}{% endif %}{% endfor %}""" + CHATML.replace(
    "{{ m.content }}",
    "{{ m.content if loop.index0 > ns.question else m.content.split('</think>')[-1] }}",
)
"""As Qwen3's: what was thought before the last question is dropped."""
TURNS = [
    ("user", "q1"),
    ("assistant", "<think>t1</think>a1"),
    ("user", "q2"),
    ("assistant", "<think>t2</think>call"),
    ("tool", "result"),
    ("assistant", "<think>t3</think>a2"),
]
THINKING = Row("9", [{"role": role, "content": content} for role, content in TURNS])


def as_text(tokenizer: Tokenizer, row: Row) -> list[tuple[str, str]]:
    """Each sample with its trained tokens in brackets, and its text."""
    texts = []
    for sample in encode_conversation(tokenizer, row):
        text = raw(tokenizer, sample.prompt)
        for token, trained in zip(sample.response, sample.mask, strict=True):
            piece = raw(tokenizer, [token])
            text += f"[{piece}]" if trained else piece
        texts.append((text.replace("][", ""), sample.text))
    return texts


def test_turns_that_the_template_changes_later_are_trained_as_they_are_generated(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, FORGETS_THOUGHTS)
    start = "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n"
    assert as_text(tokenizer, THINKING) == [
        (f"{start}[<think>t1</think>a1<|im_end|>]", "<think>t1</think>a1"),
        (
            f"{start}a1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n"
            "[<think>t2</think>call<|im_end|>]\n<|im_start|>tool\nresult<|im_end|>\n<|im_start|>assistant\n"
            "[<think>t3</think>a2<|im_end|>]",
            "<think>t3</think>a2",
        ),
    ]


def test_chats_by_a_template_as_qwen3_s_train_every_turn_once(tmp_path: Path) -> None:
    make_chat_tokenizer(tmp_path, "qwen3")
    tokenizer = Tokenizer(tmp_path)
    texts = as_text(tokenizer, CHAT)
    assert [text.partition("[")[2] for text, _ in texts] == [
        "<think>\n\n</think>\n\n4<|im_end|>]",
        "<think>\n\n</think>\n\nIt is 6.<|im_end|>]",
    ]
    assert "<|im_start|>assistant\n4<|im_end|>" in texts[1][0]
    for sample, turn in zip(encode_conversation(tokenizer, CHAT), (1, 3), strict=True):
        prompt = tokenizer.encode_chat(CHAT, list(CHAT.prompt[:turn]), generation_prompt=True)
        assert sample.prompt.tolist() == prompt.tolist()


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the tokenizer's code writes to when it runs."""
    monkeypatch.setenv("CODE_RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    make_coded_tokenizer(folder)
    return folder


def test_it_works_like_any_other(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(folder, code=code_files(folder))
    make_tiny_tokenizer(tmp_path / "plain")
    assert tokenizer.eos_token_ids == (END_ID,)
    tokens = tokenizer.encode_prompt(ROW_tokenizer_loading, True)
    assert tokens.tolist().count(END_ID) == 1  # that of the row is text
    assert "Grüße <|im_end|> 2 + 2?" in tokenizer.decode(tokens)
    assert len(tokens) == len(Tokenizer(tmp_path / "plain").encode_prompt(ROW_tokenizer_loading, True))
    end, more = tokenizer.follow_up([{"role": "user", "content": "?"}])
    assert (end.tolist(), tokenizer.decode(more)) == ([END_ID], "\nuser\n?\nassistant\n")
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one"}]
    (answer,) = encode_conversation(tokenizer, Row("8", messages))
    assert tokenizer.decode(answer.response) == "one"


def test_without_trust_nothing_runs(folder: Path, ran: Path) -> None:
    with pytest.raises(ValueError, match=r"has a class of its own: .* set model.trust_remote_code = true"):
        Tokenizer(folder)
    assert not ran.exists()


def test_changed_code_does_not_run(folder: Path, ran: Path) -> None:
    code = code_files(folder)
    (folder / "tokenization_tiny.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(ValueError, match="has Python files that differ"):
        Tokenizer(folder, code=code)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("spelling", "byte_level", "expected"),
    [
        ("\u0120the", True, b" the"),
        ("\u010a", True, b"\n"),
        ("\u00e2\u0124", True, b"\xe2\x82"),
        ("\u2581the", False, b" the"),
        ("<0xE2>", False, b"\xe2"),
        ("\u00e9", False, "\u00e9".encode()),
        ("\u4e2d", True, "\u4e2d".encode()),
    ],
)
def test_bytes_of_a_token(spelling: str, byte_level: bool, expected: bytes) -> None:
    assert token_bytes(spelling, byte_level=byte_level) == expected


def test_every_byte_has_a_spelling() -> None:
    spelled = {token_bytes(chr(code), byte_level=True) for code in range(33, 324) if chr(code).isprintable()}
    assert {bytes([byte]) for byte in range(33, 127)} <= spelled


def test_byte_level_vocabularies_have_a_token_for_the_space() -> None:
    assert is_byte_level({"\u0120", "a"})
    assert not is_byte_level({"\u2581", "a"})

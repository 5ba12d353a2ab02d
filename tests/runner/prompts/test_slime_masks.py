"""What SFT trains on, beside each kind of `--loss-mask-type` of slime (slime/utils/mask_utils.py).

slime builds the marks for each family of chat templates; rlrun follows the template. Both train the same
tokens, but for the line break that slime also trains after each answer, which no engine generates.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from rlrun.plugins.types import Row
from rlrun.runner.prompts.conversations import encode_conversation
from rlrun.runner.prompts.tokenizer import Tokenizer
from tests.chat_templates import QWEN3

Messages = list[dict[str, str]]
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3_5 = """\
{% set seen = namespace(question=-1) %}{% for m in messages %}{% if m.role == 'user' %}\
{% set seen.question = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% set thought = m.content.split('</think>')[0].split('<think>')[-1] \
if '</think>' in m.content else '' %}{% if loop.index0 > seen.question %}<think>
{{ thought.strip('\\n') }}
</think>

{% endif %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""Thoughts of the answers after the last question, and a thought that the prompt begins."""
R1_DISTILLED = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)
"""An answer without its thoughts, wherever it is."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|User|>", "<|Assistant|>"]
ONCE = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
TWICE = [*ONCE, {"role": "user", "content": "And 3 + 3?"}, {"role": "assistant", "content": "It is 6."}]


def make(folder: Path, template: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return Tokenizer(folder)


def ours(tokenizer: Tokenizer, messages: Messages) -> list[str]:
    """Returns each run of trained tokens, as text."""
    runs = [
        np.split(sample.response, np.flatnonzero(np.diff(sample.mask)) + 1)[::2]
        for sample in encode_conversation(tokenizer, Row("0", messages))
    ]
    return [tokenizer.decode_batch([run], special=True)[0] for each in runs for run in each]


def render(tokenizer: Tokenizer, messages: Messages, *, prompt: bool = False) -> str:
    return str(
        tokenizer._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    )


def by_turn(tokenizer: Tokenizer, messages: Messages, before: Messages) -> list[str]:
    """Returns each answer as it is rendered by itself after `before`, from the end of the prompt."""
    question: Messages = [{"role": "user", "content": "?"}]
    prompt = len(render(tokenizer, question, prompt=True)) - len(render(tokenizer, question))
    skipped = len(render(tokenizer, before)) if before else 0
    answers = [message for message in messages if message["role"] == "assistant"]
    return [render(tokenizer, [*before, answer])[skipped + prompt :] for answer in answers]


def qwen(tokenizer: Tokenizer, messages: Messages) -> list[str]:
    return by_turn(tokenizer, messages, [])


def qwen3(tokenizer: Tokenizer, messages: Messages) -> list[str]:
    return by_turn(tokenizer, messages, [{"role": "user", "content": "?"}])


def qwen3_5(tokenizer: Tokenizer, messages: Messages) -> list[str]:
    """Renders the whole chat once; an answer begins after the `<think>` that its prompt ends with."""
    turns = render(tokenizer, messages).split("<|im_start|>assistant\n")[1:]
    return [turn.partition("<|im_end|>\n")[0].removeprefix("<think>\n") + "<|im_end|>\n" for turn in turns]


@pytest.mark.parametrize(("template", "reference"), [(QWEN, qwen), (QWEN3, qwen3)], ids=["qwen", "qwen3"])
@pytest.mark.parametrize("messages", [ONCE, TWICE], ids=["one answer", "two answers"])
def test_answers_are_trained_as_slime_does(
    template: str, reference: Any, messages: Messages, tmp_path: Path
) -> None:
    tokenizer = make(tmp_path, template)
    assert [f"{answer}\n" for answer in ours(tokenizer, messages)] == reference(tokenizer, messages)


def test_the_last_answer_of_qwen3_5_is_and_earlier_ones_are_as_the_policy_makes_them(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, QWEN3_5)
    thinking = [ONCE[0], {"role": "assistant", "content": "<think>two twos</think>\n4"}]
    assert [f"{answer}\n" for answer in ours(tokenizer, thinking)] == qwen3_5(tokenizer, thinking)
    first, last = ours(tokenizer, [*thinking, *TWICE[2:]])
    slime = qwen3_5(tokenizer, [*thinking, *TWICE[2:]])
    assert f"{last}\n" == slime[1]
    assert (first, slime[0]) == ("two twos\n</think>\n\n4<|im_end|>", "4<|im_end|>\n")


def test_the_end_of_an_answer_of_r1_s_distilled_models_is_trained_too(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, R1_DISTILLED)
    assert ours(tokenizer, ONCE) == [ONCE[-1]["content"] + "<|im_end|>"], "distill_qwen: the content alone"
    thought = [ONCE[0], {"role": "assistant", "content": "<think>two twos</think>4"}]
    assert ours(tokenizer, thought) == ["4<|im_end|>"], "the template drops the thought, which slime trains"

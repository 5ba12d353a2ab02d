"""Tiny tokenizers of letters that end turns, call tools and think as Qwen3's and Llama 3's do: what of their
chat templates matters for conversations.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

QWEN3 = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% set seen = namespace(question=-1) %}{% for m in messages %}{% if m.role == 'user' %}\
{% set seen.question = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}\
{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\
{{ '\\n' }}<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% else %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>

</think>

{% endif %}{{ m.content.split('</think>\n\n')[-1] if loop.index0 < seen.question else m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
LLAMA3 = """\
{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>

Environment: ipython
{{ tools | tojson }}<|eot_id|>{% endif %}{% for m in messages %}<|start_header_id|>\
{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{{ m.content | tojson if m.role == 'tool' else m.content | trim }}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
FAMILIES = {
    "qwen3": (QWEN3, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"], ["<|im_end|>", "<|endoftext|>"]),
    "llama3": (
        LLAMA3,
        ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>",
         "<|begin_of_text|>", "<|python_tag|>"],
        ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    ),
}  # fmt: skip
"""Template, special tokens, and those that end a turn, the template's own first."""


def make_chat_tokenizer(folder: Path, family: str, vocab: int = 320) -> None:
    """Write a tokenizer of letters with the special tokens of a family, and which of them end a turn."""
    template, special, ends = FAMILIES[family]
    words = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = [*special, *words, *letters]
    fillers = [f"<|filler_{number}|>" for number in range(vocab - len(known))]
    ids = {token: number for number, token in enumerate([*known, *fillers])}
    backend = Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in words])
    begin = "<|begin_of_text|>" if family == "llama3" else None
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=ends[0], bos_token=begin)
    fast.chat_template = template
    fast.save_pretrained(folder)
    ending = {"eos_token_id": [ids[token] for token in ends]}
    (folder / "generation_config.json").write_text(json.dumps(ending))

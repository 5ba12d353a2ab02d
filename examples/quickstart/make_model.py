"""Write the untrained model of the quickstart: config.json of a small Qwen3, and a tokenizer made for it.

    python examples/quickstart/make_model.py FOLDER

The tokenizer is a byte-level BPE learned from reasoning-gym's tasks. It splits like Qwen's, save that a space
goes with the digit after it, and it has `<answer>` and `</answer>` as tokens. The weights come from
`rlrun launch quickstart-sft`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import reasoning_gym
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<answer>", "</answer>")
TASKS = (
    "chain_sum",
    "basic_arithmetic",
    "gcd",
    "lcm",
    "leg_counting",
    "letter_counting",
    "simple_equations",
    "spell_backward",
    "word_sorting",
)
ENTRIES = 500
"""Of each task, for the tokenizer."""
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "hidden_act": "silu",
    "bos_token_id": SPECIAL.index("<|endoftext|>"),
    "eos_token_id": SPECIAL.index("<|im_end|>"),
    "pad_token_id": SPECIAL.index("<|endoftext|>"),
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": CONFIG["max_position_embeddings"],
}


def texts() -> Iterator[str]:
    """Questions with their answers, as the chat template joins them."""
    for task in TASKS:
        for entry in reasoning_gym.create_dataset(task, size=ENTRIES, seed=0):
            yield f"user\n{entry['question']}"
            yield f"assistant\n{entry['answer']}"


def make_tokenizer() -> Tokenizer:
    """A BPE of VOCABULARY tokens, the special ones first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def main(folder: Path) -> None:
    """Write everything but the weights into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    generation = {name: CONFIG[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (
        ("config", CONFIG),
        ("generation_config", generation),
        ("tokenizer_config", TOKENIZER_CONFIG),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

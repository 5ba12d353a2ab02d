"""The workload that side-by-side benchmarks share: a Qwen3 of 5.8M random parameters and arithmetic prompts.

Prompts come from reasoning-gym's `chain_sum`. Lengths are either fixed (every response has `max_new` tokens)
or geometric with a given mean: then so much of the vocabulary ends a response that a uniform policy stops
after `mean` tokens.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

TASK = {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 3}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Workload:
    """One configuration of the comparison."""

    prompts: int = 16
    samples: int = 8
    max_new: int = 128
    mean: int = 0
    """Mean of geometric lengths; 0: every response has `max_new` tokens."""
    steps: int = 6
    threads: int = 2
    dtype: str = "bfloat16"
    lr: float = 1e-5
    rank: int = 0
    """Rank of the low-rank adapters that are trained; 0: the whole model is trained."""
    terms: int = 0
    """The number of terms of each question, of about 3 tokens each; 0: few, as in TASK."""
    vocab: int = 4096
    hidden: int = 256
    layers: int = 6

    @property
    def stop_tokens(self) -> list[int]:
        """Tokens that end a response besides `<|im_end|>`."""
        return list(range(300, 300 + max(1, round(self.vocab / self.mean)) - 1)) if self.mean else []

    @property
    def task(self) -> dict[str, int]:
        """Returns the parameters of the task `chain_sum`."""
        return TASK | ({"min_terms": self.terms, "max_terms": self.terms} if self.terms else {})

    def as_dict(self) -> dict[str, object]:
        """Returns the fields for the JSON that a benchmark prints."""
        return asdict(self)


def questions(count: int, work: Workload) -> list[dict[str, object]]:
    """`count` reasoning-gym entries, the same on both sides."""
    import reasoning_gym

    return list(reasoning_gym.create_dataset("chain_sum", size=count, seed=42, **work.task))


def write_model(folder: Path, work: Workload) -> Path:
    """Write the random model and its tokenizer as an HF folder, once."""
    if not (folder / "config.json").exists():
        _write_tokenizer(folder, work.vocab)
        _write_weights(folder, work)
    return folder


def _write_tokenizer(folder: Path, vocab: int) -> None:
    import sysconfig

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    tokenizer.train([str(path) for path in text], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>",
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def _write_weights(folder: Path, work: Workload) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=work.vocab,
        hidden_size=work.hidden,
        intermediate_size=3 * work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)

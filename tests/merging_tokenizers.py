"""Tiny byte-level tokenizers that have tokens for some words, so that two split a text differently."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import PAD


def make_merging_tokenizer(
    folder: Path,
    words: Sequence[str],
    end: str,
    *special: str,
    template: str | None = None,
    lower: bool = False,
) -> int:
    """Writes a tokenizer with a token for each beginning of each word; returns the number of its tokens.

    Token 0 pads and 1 ends, as in the tiny models. `lower`: it makes texts lower-case.
    """
    names = [PAD, end, *special]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = []
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in words:
        [(spelling, _)] = splitter.pre_tokenize_str(word)
        for length in range(2, len(spelling) + 1):
            if spelling[:length] not in tokens:
                tokens.append(spelling[:length])
                merges.append((spelling[: length - 1], spelling[length - 1]))
    ids = {token: number for number, token in enumerate([*names, *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=PAD)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return len(ids)

"""Checks that two models give every token the same number.

A teacher or a reference scores the policy's samples by their token numbers, so every token of the policy must
have the same number in that model. The sizes of the two vocabularies may differ: models of one family pad
theirs to different sizes, in config.json and in the embedding. A teacher may also know tokens that the policy
lacks.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.json_files import read_json_object
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles
from rlrun.specs.problems.codes import Code


def check_same_tokens(policy: ModelFiles, role: str, other: ModelFiles, other_cure: str = "") -> None:
    """Raises LaunchRefused if a token of the policy has another number, or none, in a teacher or reference.

    Without a tokenizer.json in both folders, only vocabularies of the same size are accepted. `other_cure`:
    what the error names beside another model, such as ", or …".
    """
    difference = _difference(policy, other)
    if difference:
        raise LaunchRefused(
            f"the {role} {other.folder} {difference}; it scores the policy's tokens by their numbers, so "
            f"both need the same tokenizer: choose a model of the policy's family{other_cure}",
            Code.MODEL,
        )


def known_tokens(tokens: NDArray[np.int32], vocabulary: int) -> NDArray[np.int32]:
    """Returns `tokens` with every number outside of a vocabulary replaced by the vocabulary's last token.

    The only tokens of the policy outside of a teacher's vocabulary are those that pad the policy's. No text
    has them; a policy samples one only by chance, and the teacher's last token is as unlikely.
    """
    return np.minimum(tokens, np.int32(vocabulary - 1))


def _difference(policy: ModelFiles, other: ModelFiles) -> str | None:
    files = [model.folder / "tokenizer.json" for model in (policy, other)]
    if not all(file.is_file() for file in files):
        sizes = [model.config()["vocab_size"] for model in (policy, other)]
        return None if sizes[0] == sizes[1] else f"has {sizes[1]} tokens and the policy {sizes[0]}"
    (policy_numbers, policy_merges), (numbers, other_merges) = map(_read_tokens, files)
    for token, number in policy_numbers.items():
        if token not in numbers:
            return f"does not have the policy's token {token!r} (number {number})"
        if numbers[token] != number:
            return f"has the token {token!r} as number {numbers[token]}, and the policy as {number}"
    same = policy_merges == other_merges
    return None if same else "has the policy's tokens, but splits text into them by other merges"


def _read_tokens(file: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Returns the numbers of all tokens of a tokenizer.json, and its merges in order.

    Raises ValueError for a file that does not describe a tokenizer.
    """
    tokenizer = read_json_object(file)
    try:
        return dict(_numbered(tokenizer)), _merges(tokenizer)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{file} does not describe a tokenizer ({error}): copy the file again") from None


def _numbered(tokenizer: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields every token with its number: those of the vocabulary, and those added to it."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram models: pieces with their scores, in order
        yield from ((piece[0], number) for number, piece in enumerate(vocabulary))
    else:
        yield from vocabulary.items()
    yield from ((token["content"], token["id"]) for token in tokenizer.get("added_tokens") or ())


def _merges(tokenizer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the merges in order; older files write a pair as one string, newer ones as two."""
    merges = (tokenizer.get("model") or {}).get("merges") or ()
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]

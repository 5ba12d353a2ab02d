"""Which teachers know the policy's tokens by the same numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.prompts.shared_vocabulary import check_same_tokens

VOCABULARY = {"a": 0, "b": 1, "c": 2, "ab": 3}
MERGES = [["a", "b"], ["ab", "c"]]
ADDED = [{"content": "<end>", "id": 4}]


def tokenizer(**changes: Any) -> dict[str, Any]:
    fields = {"vocab": VOCABULARY, "merges": MERGES, "added": ADDED} | changes
    return {
        "model": {"type": "BPE", "vocab": fields["vocab"], "merges": fields["merges"]},
        "added_tokens": fields["added"],
    }


def model(folder: Path, size: int, content: dict[str, Any] | None) -> ModelFiles:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": size}))
    if content is not None:
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return ModelFiles(folder, None)


@pytest.mark.parametrize(
    ("size", "content"),
    [
        (8, tokenizer()),
        (16, tokenizer()),
        (5, tokenizer()),
        (8, tokenizer(merges=["a b", "ab c"])),
        (8, tokenizer(added=[], vocab=VOCABULARY | {"<end>": 4})),
        (8, tokenizer(added=[*ADDED, {"content": "<think>", "id": 5}])),
        (8, None),
    ],
    ids=[
        "the same",
        "more padding",
        "less padding",
        "merges as an older file writes them",
        "an added token within the vocabulary",
        "a token that the policy lacks",
        "no tokenizer, and as many tokens",
    ],
)
def test_accepted(tmp_path: Path, size: int, content: dict[str, Any] | None) -> None:
    policy = model(tmp_path / "policy", 8, tokenizer())
    check_same_tokens(policy, "teacher", model(tmp_path / "other", size, content))


@pytest.mark.parametrize(
    ("size", "content", "reason"),
    [
        (
            8,
            tokenizer(vocab=VOCABULARY | {"b": 2, "c": 1}),
            "'b' as number 2, and the policy as 1",
        ),
        (
            8,
            tokenizer(vocab={"a": 0, "b": 1, "d": 2, "ab": 3}),
            r"does not have .* token 'c' \(number 2\)",
        ),
        (8, tokenizer(added=[]), "does not have the policy's token '<end>'"),
        (8, tokenizer(added=[{"content": "<end>", "id": 5}]), "'<end>' as number 5, and the policy as 4"),
        (8, tokenizer(merges=MERGES[:1]), "splits text into them by other merges"),
        (16, None, "has 16 tokens and the policy 8"),
    ],
    ids=[
        "the same size, other numbers",
        "the same size, another token",
        "an added token is missing",
        "an added token has another number",
        "other merges",
        "no tokenizer, and another size",
    ],
)
def test_refused(tmp_path: Path, size: int, content: dict[str, Any] | None, reason: str) -> None:
    policy = model(tmp_path / "policy", 8, tokenizer())
    with pytest.raises(LaunchRefused, match=f"the teacher .*/other .*{reason}.*choose a model of"):
        check_same_tokens(policy, "teacher", model(tmp_path / "other", size, content))


def test_pieces_of_a_unigram_model_are_numbered_in_order(tmp_path: Path) -> None:
    pieces = [["a", -1.0], ["b", -2.0]]
    policy = model(tmp_path / "policy", 2, {"model": {"vocab": pieces}})
    check_same_tokens(policy, "teacher", model(tmp_path / "same", 4, {"model": {"vocab": pieces}}))
    with pytest.raises(LaunchRefused, match="'a' as number 1, and the policy as 0"):
        check_same_tokens(policy, "teacher", model(tmp_path / "other", 2, {"model": {"vocab": pieces[::-1]}}))


@pytest.mark.parametrize(
    "content", [{"model": [3]}, {"added_tokens": [{"content": "x"}]}, {"added_tokens": 3}]
)
def test_a_file_that_describes_no_tokenizer_is_named(tmp_path: Path, content: dict[str, Any]) -> None:
    policy = model(tmp_path / "policy", 8, tokenizer())
    other = model(tmp_path / "other", 8, content)
    with pytest.raises(
        ValueError, match=r"other/tokenizer.json does not describe a tokenizer .*: copy the file"
    ):
        check_same_tokens(policy, "teacher", other)

"""End tokens from a model folder's files, as different generations of tokenizers write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.prompts.end_tokens import end_token_ids

ADDED = {"added_tokens": [{"id": 7, "content": "<end>"}, {"id": 8, "content": "<pad>"}]}
BPE = {"model": {"vocab": {"a": 0, "</s>": 2}}}
UNIGRAM = {"model": {"vocab": [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]}}


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 5}}, (5,)),
        ({"config": {"eos_token_id": [5, 6]}, "generation_config": {"eos_token_id": 9}}, (9, 5, 6)),
        ({"config": {"eos_token_id": -1}, "generation_config": {"eos_token_id": None}}, ()),
        (
            {"tokenizer_config": {"eos_token": "<end>"}, "tokenizer": ADDED, "config": {"eos_token_id": 5}},
            (7, 5),
        ),
        ({"tokenizer_config": {"eos_token": {"content": "<end>"}}, "tokenizer": ADDED}, (7,)),
        ({"special_tokens_map": {"eos_token": "<end>"}, "tokenizer": ADDED}, (7,)),
        ({"tokenizer_config": {"eos_token": "</s>"}, "tokenizer": BPE}, (2,)),
        ({"tokenizer_config": {"eos_token": "</s>"}, "tokenizer": UNIGRAM}, (2,)),
        ({"tokenizer_config": {"eos_token": "</s>"}, "vocab": {"</s>": 3}}, (3,)),
        ({"tokenizer_config": {"eos_token": "<end>"}, "added_tokens": {"<end>": 4}}, (4,)),
        (
            {"tokenizer_config": {"eos_token": "<end>", "added_tokens_decoder": {"6": {"content": "<end>"}}}},
            (6,),
        ),
        ({"tokenizer_config": {"eos_token": "<unknown>"}, "tokenizer": ADDED}, ()),
    ],
)
def test_every_file_that_names_an_end_token_counts(
    tmp_path: Path, files: dict[str, Any], ids: tuple[int, ...]
) -> None:
    for name, values in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert end_token_ids(tmp_path) == ids

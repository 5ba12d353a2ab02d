"""Demonstrations of datasets too large to be tokenised as a whole."""

from pathlib import Path

import pytest

from rlrun.plugins.types import Prompt, Row
from rlrun.runner.inputs import Demonstrations
from rlrun.runner.tokenizer import Tokenizer
from rlrun.specs.job import Spec
from tests.tiny_models import make_tiny_model


@pytest.mark.parametrize("keep", [True, False])
def test_a_row_met_twice_in_one_batch_is_demonstrated_twice(tmp_path: Path, keep: bool) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = Spec.model_validate(
        {"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}}
    )
    demonstrations = Demonstrations(spec, Tokenizer(folder), keep=keep)
    row = Row(id="7", prompt="What is 2 + 2?", response="4")
    prompts = [Prompt(row, place, demonstrations.encode(row)) for place in range(2)]
    first, second = demonstrations.groups(prompts)
    assert first.samples[0].tokens.tolist() == second.samples[0].tokens.tolist()
    assert [first.prompt.index, second.prompt.index] == [0, 1]


def test_a_preference_is_a_pair_that_counts_once(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = Spec.model_validate(
        {"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}}
    )
    demonstrations = Demonstrations(spec, Tokenizer(folder), keep=True, pairs=True)
    row = Row(id="7", prompt="What is 2 + 2?", response="4", rejected="not 4")
    [group] = demonstrations.groups([Prompt(row, 3, demonstrations.encode(row))])
    preferred, rejected = group.samples
    assert (preferred.text, rejected.text) == ("4", "not 4")
    assert len(preferred.tokens) < len(rejected.tokens)
    assert preferred.execution_id == rejected.execution_id == "3"
    assert preferred.id != rejected.id
    with pytest.raises(ValueError, match="row 8: DPO needs a pair; set the data source's rejected_key"):
        demonstrations.encode(Row(id="8", prompt="What?", response="4"))


def test_a_chat_is_trained_on_all_of_its_answers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = Spec.model_validate(
        {"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}}
    )
    demonstrations = Demonstrations(spec, Tokenizer(folder), keep=True)
    turns = [("user", "1?"), ("assistant", "one"), ("user", "2?"), ("assistant", "two")]
    row = Row(id="7", prompt=[{"role": role, "content": content} for role, content in turns])
    [group] = demonstrations.groups([Prompt(row, 0, demonstrations.encode(row))])
    [sample] = group.samples
    assert sample.text == "two"
    assert 0 < sample.loss_mask.sum() < len(sample.loss_mask)

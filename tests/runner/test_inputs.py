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

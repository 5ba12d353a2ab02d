"""Demonstrations of datasets too large to be tokenised as a whole."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.row_checks import is_good
from rlrun.plugins.types import Needs, Prompt, Row
from rlrun.runner.job.inputs import Demonstrations, read_inputs
from rlrun.runner.prompts.tokenizer import Tokenizer
from tests.chat_templates import make_chat_tokenizer
from tests.resolved_specs import resolved
from tests.tiny_models import make_tiny_model

SFT = Needs(rollout=False)


@pytest.mark.parametrize("keep", [True, False])
def test_a_row_met_twice_in_one_batch_is_demonstrated_twice(tmp_path: Path, keep: bool) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = resolved({"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}})
    demonstrations = Demonstrations(spec, Tokenizer(folder), SFT, keep=keep)
    row = Row(id="7", prompt="What is 2 + 2?", response="4")
    prompts = [Prompt(row, place, demonstrations.encode(row)) for place in range(2)]
    first, second = demonstrations.groups(prompts)
    assert first.samples[0].tokens.tolist() == second.samples[0].tokens.tolist()
    assert [first.prompt.index, second.prompt.index] == [0, 1]


def test_a_preference_is_a_pair_that_counts_once(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = resolved({"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}})
    demonstrations = Demonstrations(spec, Tokenizer(folder), Needs(rollout=False, pairs=True), keep=True)
    row = Row(id="7", prompt="What is 2 + 2?", response="4", rejected="not 4")
    [group] = demonstrations.groups([Prompt(row, 3, demonstrations.encode(row))])
    preferred, rejected = group.samples
    assert (preferred.text, rejected.text) == ("4", "not 4")
    assert len(preferred.tokens) < len(rejected.tokens)
    assert preferred.execution_id == rejected.execution_id == "3"
    assert preferred.id != rejected.id
    with pytest.raises(ValueError, match=r"row 8: the algorithm needs pairs; set data\.rejected_key"):
        demonstrations.encode(Row(id="8", prompt="What?", response="4"))


def test_a_labelled_response_is_beside_that_of_the_next_row(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = resolved({"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}})
    demonstrations = Demonstrations(spec, Tokenizer(folder), Needs(rollout=False, labels=True), keep=True)
    rows = [Row(id=str(n), prompt=f"{n} + 2?", response="4" * (n + 1), label=n == 0) for n in range(3)]
    prompts = [Prompt(row, place, demonstrations.encode(row)) for place, row in enumerate(rows)]
    groups = demonstrations.groups(prompts)
    assert [[sample.text for sample in group.samples] for group in groups] == [
        ["4", "44"],
        ["44", "444"],
        ["444", "4"],
    ]
    for group in groups:
        own, other = group.samples
        assert own.loss_mask.all() and not other.loss_mask.any()
        assert own.prompt is other.prompt and own.execution == other.execution and own.id != other.id
    with pytest.raises(ValueError, match=r"row 8 has the label 'maybe': .* set data\.label_key"):
        demonstrations.encode(Row(id="8", prompt="What?", response="4", label="maybe"))


@pytest.mark.parametrize(("label", "expected"), [(True, True), (0, False), ("True", True), ("0", False)])
def test_a_label_is_true_or_false_as_a_value_or_as_text(label: object, expected: bool) -> None:
    assert is_good(Row(id="7", prompt="What?", label=label)) is expected


def test_a_chat_is_trained_on_all_of_its_answers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    spec = resolved({"model": {"path": str(folder)}, "data": {"path": "unused"}, "trainer": {"steps": 1}})
    demonstrations = Demonstrations(spec, Tokenizer(folder), SFT, keep=True)
    turns = [("user", "1?"), ("assistant", "one"), ("user", "2?"), ("assistant", "two")]
    row = Row(id="7", prompt=[{"role": role, "content": content} for role, content in turns])
    [group] = demonstrations.groups([Prompt(row, 0, demonstrations.encode(row))])
    [sample] = group.samples
    assert sample.text == "two"
    assert 0 < sample.loss_mask.sum() < len(sample.loss_mask)


def test_a_chat_whose_earlier_turns_are_rendered_anew_is_several_samples_that_count_once(
    tmp_path: Path,
) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    make_chat_tokenizer(folder, "qwen3")
    limits = {"max_response_tokens": 80}
    spec = resolved(
        {
            "model": {"path": str(folder)},
            "data": {"path": "unused"},
            "rollout": limits,
            "trainer": {"steps": 1},
        }
    )
    demonstrations = Demonstrations(spec, Tokenizer(folder), SFT, keep=False)
    turns = [("user", "1?"), ("assistant", "one"), ("user", "2?"), ("assistant", "two")]
    row = Row(id="7", prompt=[{"role": role, "content": content} for role, content in turns])
    [group] = demonstrations.groups([Prompt(row, 4, demonstrations.encode(row).tokens)])
    assert [(one.id, one.execution_id, one.text) for one in group.samples] == [
        ("4-0", "4", "one"),
        ("4-1", "4", "two"),
    ]
    first, second = (one.prompt.tokens for one in group.samples)
    assert first.tolist() == group.prompt.tokens.tolist()
    assert len(second) > len(first)
    assert all(one.loss_mask.all() for one in group.samples)
    long = Row(id="8", prompt=[*row.prompt[:3], {"role": "assistant", "content": "t" * 60}])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"row 8: the response has \d\d tokens, rollout.max_response_tokens"):
        demonstrations.encode(long)


TOOLS = {"type": "multi_turn_tools", "tools": [{"type": "python"}]}


@pytest.mark.parametrize(
    ("data", "ends", "message"),
    [
        ({"apply_chat_template": False}, "<|im_end|>", r"set data\.apply_chat_template = true"),
        ({}, "###", "ends an answer with '#', which is not an end-of-sequence token"),
    ],
)
def test_tools_that_the_policy_cannot_be_told_of_end_the_job_before_it_starts(
    tmp_path: Path, data: dict[str, Any], ends: str, message: str
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", ends))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "label": "4"}\n')
    source = {"path": str(tmp_path / "rows.jsonl"), **data}
    spec = resolved(
        {
            "model": {"path": str(folder)},
            "data": source,
            "rollout": {"function": TOOLS},
            "trainer": {"steps": 1},
        }
    )
    with pytest.raises(ValueError, match=message):
        read_inputs(spec, folder, Needs())


def test_prompts_of_an_evaluation_have_a_limit_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_tiny_model(tmp_path, "qwen3")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"prompt": "1", "label": "1"}\n{"prompt": "1 + 1 + 1 + 1 + 1 + 1 + 1 + 1", "label": "8"}\n'
    )
    data = {"type": "jsonl", "path": str(rows), "apply_chat_template": False}
    datasets = [{"name": "long", **data}, {"name": "short", "max_prompt_tokens": 1, **data}]
    spec = resolved(
        {
            "model": {"path": str(folder)},
            "data": data,
            "rollout": {"max_prompt_tokens": 2},
            "eval": {"max_prompt_tokens": 64, "datasets": datasets},
            "debug": {"mode": "eval"},
        }
    )
    long, short = read_inputs(spec, folder, Needs()).eval_sets
    assert (len(long.prompts), len(short.prompts)) == (2, 1)
    assert long.settings.max_sample_tokens == 64 + spec.rollout.max_response_tokens
    assert "eval dataset short: dropped 1 of 2 prompts, longer than eval.max_prompt_tokens = 1" in caplog.text

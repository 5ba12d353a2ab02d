"""The prompts that a teacher reads in place of the policy's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Group, Needs, Prompt, Row, Sample, Status
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.prompts.teacher_prompts import TeacherPrompts, feedback_of
from rlrun.runner.prompts.teacher_rows import teacher_check, teacher_row
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.specs.sections.auxiliary_models import TeacherSpec
from rlrun.specs.sections.job import Spec
from tests.tiny_models import make_tiny_model

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2?"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("model") / "model"))


def group_of(tokenizer: Tokenizer, row: Row, *texts_and_rewards: tuple[str, float]) -> Group:
    """A group whose samples have these texts and rewards."""
    prompt = Prompt(row, 0, tokenizer.encode_prompt(row, True))
    samples = []
    for number, (text, reward) in enumerate(texts_and_rewards):
        tokens = tokenizer.encode(text)
        zeros = np.zeros(len(tokens), np.float32)
        sample = Sample(
            f"0-{number}", prompt, tokens, zeros, zeros + 1, (), Status.COMPLETED, text, reward=reward
        )
        samples.append(sample)
    return Group(prompt, samples)


def prompts(tokenizer: Tokenizer, template: str, max_length: int = 512, **keys: Any) -> TeacherPrompts:
    spec = TeacherSpec(weights="initial", prompt=template, **keys)
    return TeacherPrompts(spec, tokenizer, True, (), max_length)


def read(tokenizer: Tokenizer, group: Group, template: str, **keys: Any) -> list[str | None]:
    """What the teacher reads before each response; None for a sample that is not distilled."""
    sequences = to_sequences([group])
    result = prompts(tokenizer, template, **keys)([group], sequences)
    shown: list[str | None] = []
    for sample, before, after in zip(group.samples, sequences, result, strict=True):
        assert list(after.tokens[after.prompt_length :]) == list(sample.tokens)
        if not sample.distilled:
            np.testing.assert_array_equal(before.tokens, after.tokens)
        [text] = tokenizer.decode_batch([after.tokens[: after.prompt_length]], special=True)
        shown.append(text if sample.distilled else None)
    return shown


def test_the_template_replaces_the_last_message_and_keeps_the_others(tokenizer: Tokenizer) -> None:
    row = Row("7", CHAT, label="4", metadata={"hint": "even"})
    own = teacher_row("{prompt} It is {hint}, {{x}} \\boxed{}: {label}", row, {})
    assert own.prompt == [CHAT[0], {"role": "user", "content": "2 + 2? It is even, {x} \\boxed{}: 4"}]
    assert teacher_row("{label}", replace(row, prompt="2 + 2?"), {}).prompt == "4"
    [text] = read(tokenizer, group_of(tokenizer, row, ("four", 0.0)), "{prompt} ({hint})")
    assert text is not None and "2 + 2? (even)" in text and "be brief" in text


def test_the_policy_s_own_prompt_gives_its_own_tokens(tokenizer: Tokenizer) -> None:
    group = group_of(tokenizer, Row("7", CHAT), ("four", 0.0), ("five", 0.0))
    sequences = to_sequences([group])
    for ours, theirs in zip(sequences, prompts(tokenizer, "{prompt}")([group], sequences), strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        assert ours.prompt_length == theirs.prompt_length
    assert all(sample.distilled for sample in group.samples)


def test_a_solution_is_another_successful_sample_of_the_group(tokenizer: Tokenizer) -> None:
    row = Row("7", "2 + 2?")
    group = group_of(tokenizer, row, ("six", 0.0), ("four", 1.0), ("4", 1.0), ("five", float("nan")))
    first, own, second, last = read(tokenizer, group, "{prompt} <{solution}>")
    assert all(text is not None and "<four>" in text for text in (first, second, last))
    assert own is not None and "<4>" in own, "not its own text"
    alone = group_of(tokenizer, row, ("six", 0.0), ("four", 1.0))
    assert [text is None for text in read(tokenizer, alone, "{solution} {prompt}")] == [False, True]
    assert read(tokenizer, alone, "{solution}", success_reward=2.0) == [None, None]
    for sample in alone.samples:
        sample.execution_id = "0-0"
    assert read(tokenizer, alone, "{solution}") == [None, None], "samples of one execution"


def test_feedback_is_what_rewards_and_the_rollout_say(tokenizer: Tokenizer) -> None:
    group = group_of(tokenizer, Row("7", "2 + 2?"), ("six", 0.0), ("five", 0.0))
    told, untold = group.samples
    told.reward_details["code"] = {"score": 0.0, "feedback": "NameError: x\n"}
    told.info["feedback"] = "try again"
    untold.reward_details["code"] = {"feedback": "  "}
    assert feedback_of(told) == "NameError: x\ntry again" and not feedback_of(untold)
    shown, nothing = read(tokenizer, group, "{prompt} {feedback} {solution}")
    assert shown is not None and "2 + 2? NameError: x\ntry again" in shown and nothing is None


def test_a_prompt_that_is_too_long_does_not_count(tokenizer: Tokenizer) -> None:
    row = Row("7", "2 + 2?", metadata={"hint": "even " * 20})
    group = group_of(tokenizer, row, ("four", 0.0), ("four " * 10, 0.0))
    length = len(prompts(tokenizer, "{hint}")([group], to_sequences([group]))[0].tokens)
    assert [text is None for text in read(tokenizer, group, "{hint}", max_length=length)] == [False, True]
    assert read(tokenizer, group, "{hint}", max_prompt_tokens=8) == [None, None]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row("7", "2 + 2?"), "has no 'label'"),
        (Row("7", [*CHAT, {"role": "assistant", "content": "4"}], label=4), "not a text of the user"),
        (Row("7", [{"role": "user", "content": [{"type": "text", "text": "?"}]}], label=4), "not a text"),
    ],
)
def test_a_row_that_lacks_something_is_refused(row: Row, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        teacher_row("{prompt} {label}", row, {})


def test_a_rollout_with_prompts_of_its_own_is_refused(tokenizer: Tokenizer) -> None:
    group = group_of(tokenizer, Row("7", "2 + 2?"), ("four", 0.0))
    group.samples[0].prompt = replace(group.prompt, tokens=group.prompt.tokens[1:])
    with pytest.raises(ValueError, match="the rollout began this sample with another one"):
        prompts(tokenizer, "{prompt}!")([group], to_sequences([group]))


def test_texts_that_would_forge_a_turn_are_not_distilled(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Tokenizer, row: Row, *_: Any) -> None:
        raise ValueError(f"row {row.id}: a control token")

    group = group_of(tokenizer, Row("7", "2 + 2?"), ("four", 1.0), ("five", 0.0))
    monkeypatch.setattr(Tokenizer, "encode_prompt", refuse)
    assert read(tokenizer, group, "{prompt}!") == [None, None]
    assert caplog.text.count("row 7: a control token") == 1


def test_a_row_of_a_source_without_a_teacher_is_refused() -> None:
    document = {"model": {"path": "m"}, "data": {}, "teacher": {"sources": {"0": "math"}}}
    check = teacher_check(Spec.model_validate(document), Needs(teacher=True))
    check(Row("1", "2 + 2?", metadata={"source": 0}))
    with pytest.raises(ValueError, match="row 2: its source is 1"):
        check(Row("2", "2 + 2?", metadata={"source": 1}))
    with pytest.raises(ValueError, match="row 3: its source is not named"):
        check(Row("3", "2 + 2?"))
    teacher_check(Spec.model_validate(document), Needs())(Row("3", "2 + 2?"))
    both = document | {"teacher": {"sources": {"0": "math"}, "path": "t", "prompt": "{prompt} {label}"}}
    with pytest.raises(ValueError, match="the row has no 'label'"):
        teacher_check(Spec.model_validate(both), Needs(teacher=True))(Row("3", "2 + 2?"))

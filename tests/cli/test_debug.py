"""What `rlrun debug` prints about a prompt."""

import numpy as np
import pytest

from rlrun.cli.debug import describe_trace
from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.job.debugging.prompt_trace import PromptTrace

PROMPT = Prompt(Row("7", "2 + 2 =", label="4"), 0, np.array([10, 11, 12], np.int32))
PIECES = {10: b"2 +", 11: b" 2 ", 12: b"=\n", 20: b" 4", 21: b"\xe2\x82"}


def make_trace(dropped: str | None = None) -> PromptTrace:
    ones = np.ones(2, np.float32)
    sample = Sample(
        "7-0", PROMPT, np.array([20, 21], np.int32), -ones, np.array([1, 0], np.float32),
        (VersionSpan(0, 0, 2),), Status.COMPLETED, " 4\N{REPLACEMENT CHARACTER}", reward=0.5,
        rewards={"judge": 0.5}, reward_details={"judge": {"verdict": "half right"}}, advantages=0.25 * ones,
    )  # fmt: skip
    late = Sample(
        "7-1", PROMPT, np.array([20], np.int32), -ones[:1], ones[:1], (VersionSpan(0, 0, 1),), Status.FAILED,
        " 4", failure="the reward 'judge' raised",
    )  # fmt: skip
    log_probs = [np.array([-1.5, -1.0], np.float32), -ones[:1]]
    metrics = {"train/loss": 0.125, "perf/forward_time": 1.0}
    return PromptTrace(Group(PROMPT, [sample, late]), log_probs, PIECES, metrics, {"rollout": 0.5}, dropped)


def test_a_prompt_from_row_to_loss() -> None:
    lines = list(describe_trace(make_trace(), 0, 100))
    text = "\n".join(lines)
    assert lines[:3] == ["row 7", "  prompt  2 + 2 =", "  label   4"]
    assert "3 tokens\n  │ 2 + 2 =\n" in text
    assert "sample 0: completed, 2 tokens, reward 0.5" in text
    assert "reward judge = 0.5 (verdict: half right)" in text
    assert "advantage 0.25" in text
    assert "the reward 'judge' raised" in text
    assert "  train/loss  0.125" in lines
    assert "forward_time" not in text
    assert text.endswith("filters: keep this group\ntime: rollout 0.50 s")


def test_tokens_have_both_log_probs_and_their_gap() -> None:
    table = [line.split() for line in describe_trace(make_trace(), 0, 100) if line.startswith("  ")]
    assert ["2", "12", "'=\\n'", "prompt"] in table
    assert ["3", "20", "'", "4'", "1", "-1.00000", "-1.50000", "-5.0e-01", "+0.2500"] in table
    assert ["4", "21", r"'\\xe2\\x82'", "0", "-1.00000", "-1.00000", "+0.0e+00", "+0.2500"] in table
    assert any("mean 2.50e-01, largest 5.00e-01" in line for line in describe_trace(make_trace(), 0, 100))


def test_of_many_tokens_those_around_the_start_of_the_response_are_shown() -> None:
    lines = list(describe_trace(make_trace(), 0, 2))
    start = next(index for index, line in enumerate(lines) if "position" in line)
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["2", "3", "3"]
    assert "3 more tokens: --tokens 10" in lines[start + 3]


def test_the_filter_that_drops_the_group_is_named() -> None:
    assert "filters: drop this group: nonzero_std all_equal" in "\n".join(
        describe_trace(make_trace("nonzero_std all_equal"), 0, 9)
    )


def test_a_sample_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="the prompt has samples 0 to 1"):
        list(describe_trace(make_trace(), 2, 9))

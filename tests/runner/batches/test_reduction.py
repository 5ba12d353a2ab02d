import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.runner.batches.reduction import token_scales

ROWS = [
    row
    for row in map(
        json.loads, (Path(__file__).parents[2] / "data" / "algo_vectors.jsonl").read_text().splitlines()
    )
    if row["fn"] == "loss_reduce"
]
OURS = {"per_rollout_mean": "per_sample_mean", "per_token": "per_token"}


def reduce(losses, masks, executions, reduction, max_response_tokens=1):
    masks = [np.array(mask, np.float32) for mask in masks]
    scales = token_scales(masks, executions, reduction, max_response_tokens)
    return sum(
        scale * float((np.array(loss) * mask).sum())
        for scale, loss, mask in zip(scales, losses, masks, strict=True)
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["in"]["mode"])
def test_vectors(row):
    executions = [str(i) for i in row["in"].get("rollout_ids", range(len(row["in"]["mask"])))]
    got = reduce(row["in"]["token_loss"], row["in"]["mask"], executions, OURS[row["in"]["mode"]])
    assert got == pytest.approx(row["out"], abs=row["tol"])


def test_dr_grpo_divides_by_the_longest_response_allowed():
    assert reduce([[1, 2, 3], [4]], [[1, 1, 0], [1]], ["a", "b"], "dr_grpo", 5) == pytest.approx(7 / 10)


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token"])
def test_one_token_is_the_mean_of_itself(reduction):
    assert reduce([[3, 5]], [[0, 1]], ["a"], reduction) == 5


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        pytest.param("per_sample_mean", ((1 + 2 + 4) / 3 + 8) / 2, id="siblings are one execution"),
        pytest.param("per_token", (1 + 2 + 4 + 8) / 4, id="every token counts alike"),
        pytest.param("dr_grpo", (1 + 2 + 4 + 8) / (2 * 10), id="two executions of ten tokens at most"),
    ],
)
def test_siblings_of_an_execution(reduction, expected):
    losses, masks = [[1, 2, 9], [4], [8]], [[1, 1, 0], [1], [1]]
    assert reduce(losses, masks, ["a", "a", "b"], reduction, 10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reduction", "lost", "masked"),
    [
        ("per_sample_mean", (3 + 6 + 8) / 3, (3 + 6 + 8) / 4),
        ("per_token", 5, 5),
        ("dr_grpo", 20 / 30, 20 / 40),
    ],
)
def test_a_sample_that_was_lost_is_not_in_the_divisor_and_a_masked_one_is(reduction, lost, masked):
    losses, masks, executions = [[2, 4], [6], [8]], [[1, 1], [1], [1]], ["a", "b", "c"]
    assert reduce(losses, masks, executions, reduction, 10) == pytest.approx(lost)
    with_masked = [*losses, [9, 9]], [*masks, [0, 0]], [*executions, "d"]
    assert reduce(*with_masked, reduction, 10) == pytest.approx(masked)


def test_dr_grpo_of_one_execution():
    assert reduce([[6]], [[1]], ["a"], "dr_grpo", 3) == 2


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
def test_nothing_to_train_on_is_zero(reduction):
    assert reduce([[1, 2], []], [[0, 0], []], ["a", "b"], reduction) == 0


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=6), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["per_sample_mean", "per_token", "dr_grpo"]),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(samples, reduction, random):
    def value(rows):
        losses = [[loss for loss, _ in tokens] for tokens, _ in rows]
        masks = [[float(kept) for _, kept in tokens] for tokens, _ in rows]
        return reduce(losses, masks, [str(execution) for _, execution in rows], reduction, 6)

    shuffled = list(samples)
    random.shuffle(shuffled)
    assert value(shuffled) == pytest.approx(value(samples), abs=1e-9)

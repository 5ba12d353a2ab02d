"""What a rollout that starved says: what was dropped, the last failure, and what to do about it."""

from collections import Counter

import numpy as np
import pytest

from rlrun.plugins.generation import Generation, Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.rollouts.tally import Tally

ENGINE = "BadAnswer: engine 1 at http://x answered /generate with log-prob 0.7 at token 12 of sample r-0"


def generation(length: int, **drafts: int) -> Generation:
    return Generation(np.zeros(length, np.int32), np.zeros(length, np.float32), "stop", (), **drafts)


def test_speculation_is_counted_by_answers_and_by_guesses() -> None:
    tally = Tally()
    request = GenerateRequest("r", np.zeros(4, np.int32), (1, 2, 3), Sampling(16))
    answers = [
        generation(9, drafted=12, accepted=5, passes=3),
        generation(3, drafted=4, accepted=3, passes=1),  # more guesses were right than it has tokens
        generation(1),  # ended with the prompt's pass
    ]
    tally.count_request(request, answers)
    metrics = tally.metrics(0)
    assert metrics["rollout/spec_accept_rate"] == 8 / 16
    assert metrics["rollout/spec_accept_length"] == 3.0


def test_engines_that_guess_nothing_have_no_metrics_of_speculation() -> None:
    tally = Tally()
    tally.count_request(
        GenerateRequest("r", np.zeros(4, np.int32), (1,), Sampling(16)), [generation(5, passes=4)]
    )
    assert not any("spec" in name for name in tally.metrics(0))


@pytest.mark.parametrize(
    ("dropped", "failure", "said"),
    [
        (
            {("generation", "failed"): 4},
            ENGINE,
            f"4 by generation (failed). The last failure: {ENGINE}. No filter",
        ),
        ({("generation", "timeout"): 4}, "", "4 by generation (timeout). No filter dropped any of them"),
        (
            {("nonzero_std", "all_0"): 4},
            "",
            "4 by nonzero_std (all_0). Choose prompts the policy sometimes solves",
        ),
        (
            {("nonzero_std", "all_0"): 3, ("generation", "failed"): 1},
            ENGINE,
            f"The last failure: {ENGINE}. Choose prompts",
        ),
    ],
)
def test_a_rollout_that_starved(dropped: dict[tuple[str, str], int], failure: str, said: str) -> None:
    tally = Tally(submitted=4, dropped=Counter(dropped), failure=failure)
    with pytest.raises(JobError) as caught:
        tally.accept_partial_batch([], 1)
    assert said in str(caught.value)

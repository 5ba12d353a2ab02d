"""What a rollout that starved says: what was dropped, the last failure, and what to do about it."""

from collections import Counter

import pytest

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.rollouts.tally import Tally

ENGINE = "BadAnswer: engine 1 at http://x answered /generate with log-prob 0.7 at token 12 of sample r-0"


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

"""Checks the contract of rewards and the scores of this one. Install the package, then run pytest."""

from rlrun.plugins.testing import check_reward, sample


def test_contract_and_scores() -> None:
    samples = [sample("one two three four"), sample("one two"), sample(""), sample("word " * 9)]
    assert check_reward("wordcount", {"target": 4}, samples) == [1, 0.5, 0, 0]
    assert check_reward("wordcount", {"target": 4, "tolerance": 2}, samples) == [1, 1, 0.5, 0.25]

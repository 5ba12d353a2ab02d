"""How many of the teacher's tokens a loss may compare one by one: those of the vocabulary."""

from rlrun.specs.needs import Needs


def vocabulary_problem(needs: Needs, vocabulary: int) -> str:
    """Returns why a loss cannot compare as many tokens as it needs; empty if it can, or compares none."""
    if needs.divergence is None or needs.divergence.top_k <= vocabulary:
        return ""
    found = needs.divergence.top_k
    return f"must be at most {vocabulary}, the number of tokens of the policy's vocabulary, found {found}"

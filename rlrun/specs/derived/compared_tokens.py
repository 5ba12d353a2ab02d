"""How many of the teacher's tokens a loss may compare one by one: those of the vocabulary."""

from rlrun.specs.needs import Needs


def vocabulary_problem(needs: Needs, vocabulary: int) -> str:
    """Returns why a loss cannot compare as many tokens as it needs; empty if it can, or compares none."""
    if (found := needs.compared_tokens) <= vocabulary:
        return ""
    return f"must be at most {vocabulary}, the number of tokens of the policy's vocabulary, found {found}"

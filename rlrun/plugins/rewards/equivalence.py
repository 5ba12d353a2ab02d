"""Whether two mathematical answers are the same: as text, element by element, by value."""

import re
from functools import lru_cache

from rlrun.plugins.rewards.latex import elements, normalised

LONGEST_ANSWER = 2000
_CALCULABLE = re.compile(r"\d|[-+*/^()\\]|^[a-zA-Z]$")


def same_answer(answer: str, label: str) -> bool:
    """Whether the answer is the label; an empty one never is, a long one only word for word."""
    if len(answer) > LONGEST_ANSWER:
        return answer.strip() == label.strip() != ""
    left, right = normalised(answer), _normalised_label(label)
    if not left or not right:
        return False
    return left == right or _same_elements(left, right)


@lru_cache(maxsize=4096)
def _normalised_label(label: str) -> str:
    """All samples of a group share their label."""
    return normalised(label)


def _same_elements(left: str, right: str) -> bool:
    left_brackets, left_parts = elements(left)
    right_brackets, right_parts = elements(right)
    if left_brackets != right_brackets or len(left_parts) != len(right_parts):
        return False
    return all(map(_same_value, left_parts, right_parts))


def _same_value(left: str, right: str) -> bool:
    """Words are compared as words: `even` is not the product of its letters."""
    if left == right or not any(_CALCULABLE.search(side) for side in (left, right)):
        return left == right
    from rlrun.plugins.rewards.expression import equal  # mpmath, which checking a spec does not need

    return equal(left, right)

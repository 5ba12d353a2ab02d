"""Which known name is spelt most like an unknown one."""

from collections.abc import Iterable

_SAME_LETTERS = 0.9
"""How alike two words count that differ only in the order of their letters."""


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the candidate spelt most like `name`, or None if none is near."""
    scores = {candidate: likeness(name, candidate) for candidate in candidates}
    best = max(scores, key=lambda candidate: scores[candidate], default=None)
    return best if best is not None and scores[best] >= cutoff else None


def likeness(name: str, other: str) -> float:
    """Returns from 0 to 1 how much alike two names are spelt, case and hyphens aside."""
    from difflib import SequenceMatcher

    first, second = plain(name), plain(other)
    alike = SequenceMatcher(None, first, second).ratio()
    return max(alike, _SAME_LETTERS) if sorted(first) == sorted(second) else alike


def plain(name: str) -> str:
    """`--Max-Steps` as `max_steps`."""
    return name.lower().replace("-", "_").strip("_ ")

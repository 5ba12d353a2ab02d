"""Which known name is spelt most like an unknown one."""

from collections.abc import Iterable

_SAME_LETTERS = 0.9
"""How alike two words count that differ only in the order of their letters."""


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate spelt most like `name`, case and hyphens aside; None when none is near."""
    from difflib import SequenceMatcher

    target = plain(name)

    def likeness(candidate: str) -> float:
        word = plain(candidate)
        alike = SequenceMatcher(None, target, word).ratio()
        return max(alike, _SAME_LETTERS) if sorted(word) == sorted(target) else alike

    scores = {candidate: likeness(candidate) for candidate in candidates}
    best = max(scores, key=lambda candidate: scores[candidate], default=None)
    return best if best is not None and scores[best] >= cutoff else None


def plain(name: str) -> str:
    """`--Max-Steps` as `max_steps`."""
    return name.lower().replace("-", "_").strip("_ ")

"""Which known name is spelt most like an unknown one."""

from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate spelt most like `name`, or None when none is near; case, hyphens and outer underscores
    aside."""
    from difflib import get_close_matches

    by_spelling = {plain(candidate): candidate for candidate in candidates}
    found = get_close_matches(plain(name), by_spelling, n=1, cutoff=cutoff)
    return by_spelling[found[0]] if found else None


def plain(name: str) -> str:
    """`--Max-Steps` as `max_steps`."""
    return name.lower().replace("-", "_").strip("_ ")

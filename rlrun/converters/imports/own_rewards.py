"""Reward functions of the user's, which have to be written in rlrun's form."""

from collections.abc import Sequence

_FILE = "rewards.py"


def own_reward(function: str) -> str:
    """Returns the `type` of a reward that the user has to write."""
    return f"{_FILE}:{function}"


def how_to_write(functions: Sequence[str]) -> str:
    """Returns the note about functions of the user's."""
    return (
        f"write {', '.join(functions)} in {_FILE} as rlrun's rewards: `@rlrun.reward`, a function of one "
        "sample that returns a number (docs/plugins.md); then say --allow-local-plugins"
    )

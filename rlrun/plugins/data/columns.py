"""Guesses from their names which columns of a table hold the prompt, the label and the demonstration."""

from collections.abc import Collection, Sequence

PROMPT_NAMES = (
    *("prompt", "question", "problem", "instruction", "query", "input", "messages", "conversations", "text"),
)
LABEL_NAMES = (
    *("label", "answer", "final_answer", "ground_truth", "target", "gold", "solution", "expected_answer"),
    *("output", "tests"),
)
RESPONSE_NAMES = ("response", "completion", "output", "chosen", "answer", "solution")


def likely(columns: Collection[str], names: Sequence[str]) -> str | None:
    """Returns the column whose name comes first in `names`, ignoring case; None if no name matches."""
    by_name = {column.lower(): column for column in columns}
    return next((by_name[name] for name in names if name in by_name), None)

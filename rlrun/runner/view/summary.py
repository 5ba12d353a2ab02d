"""Reads what lists of samples show from a sample's record, whichever version of rlrun wrote it. Pure.

Every field of a record may be missing or have another type: records come from files that may be old, damaged
or made by someone else.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_NAME_LENGTH = 500
"""Characters of an id, a status or a dataset's name that an index keeps."""
_MAX_QUOTE_LENGTH = 240
"""Characters of a prompt or a response that lists show."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One sample as lists show it."""

    id: str
    row: str
    """Id of its row in the dataset; samples of the same row in one step are a group."""
    dataset: str
    """Name of the dataset, where the record has one."""
    reward: float | None
    tokens: int
    status: str
    failed: bool
    """The sample or its reward failed."""
    verdicts: str
    """The filters' verdicts, separated by spaces."""
    oldest_version: int | None
    """The oldest version of the weights that generated a token."""


def summarise(record: Mapping[str, Any]) -> Summary:
    """Returns the summary of a record."""
    versions = [span[0] for span in as_list(record.get("versions")) if as_list(span) and _is_int(span[0])]
    tokens = number(record.get("tokens"))
    return Summary(
        id=_name(record.get("id")),
        row=_name(record.get("row")),
        dataset=_name(record.get("dataset")),
        reward=number(record.get("reward")),
        tokens=int(tokens) if tokens is not None and 0 <= tokens < 1 << 53 else 0,
        status=_name(record.get("status")),
        failed=bool(record.get("failure")) or record.get("status") == "failed",
        verdicts=" ".join(_name(verdict) for verdict in as_list(record.get("verdicts"))),
        oldest_version=min(versions, default=None),
    )


def quote(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns both ends of a record's prompt and the beginning of its response.

    Many prompts begin with the same instruction.
    """
    prompt, half = prompt_text(record.get("prompt")), _MAX_QUOTE_LENGTH // 2
    if len(prompt) > _MAX_QUOTE_LENGTH:
        prompt = f"{prompt[:half]}…{prompt[-half:]}"
    return {"prompt": prompt, "excerpt": str(record.get("response") or "")[:_MAX_QUOTE_LENGTH]}


def prompt_text(prompt: object) -> str:
    """Returns what tells a prompt from others: its text, or that of the last message that a user wrote.

    System messages are the same in every prompt.
    """
    if not isinstance(prompt, list):
        return "" if prompt is None else str(prompt)
    messages = [message for message in prompt if isinstance(message, dict)]
    written = [message for message in messages if message.get("role") == "user"] or messages
    content = written[-1].get("content") if written else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return " ".join(text for text in texts if isinstance(text, str))
    return "" if content is None else str(content)


def number(value: object) -> float | None:
    """Returns a finite number as a float; None for every other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def mean_and_spread(rewards: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Returns the mean and the standard deviation of a group's known rewards, which must be finite.

    The mean is None without rewards, and the deviation with fewer than two.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return None, None
    largest = max(map(abs, known)) or 1.0  # sums and squares of rewards such as 1e308 would overflow
    scaled = [reward / largest for reward in known]
    mean = math.fsum(scaled) / len(scaled)
    if len(known) < 2:
        return mean * largest, None
    variance = math.fsum((reward - mean) ** 2 for reward in scaled) / len(scaled)
    return mean * largest, math.sqrt(variance) * largest


def _name(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return text[:_MAX_NAME_LENGTH].encode(errors="replace").decode()  # lone surrogates cannot be stored


def as_list(value: object) -> list[Any]:
    """Returns a list; an empty one for every other value."""
    return value if isinstance(value, list) else []


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53
